"""Phase 1: who shall lead (paper 2.2 and 3.1: FLE and FCE; 3.3.2: the EpochTable flood before it).

A looking server goes through up to three steps. **Recall**: a server that lost its memory (or disk) asks
the others, and does not vote before it knows what it may have promised. **Table** (DEP): the latest
EpochTable is flooded. **Vote**: the largest vote is flooded (OptFloodMax) until a quorum agrees on it and
nothing larger has come for the finalize wait. The wait only makes a wrong choice unlikely: discovery
refuses a leader that is not up to date, so that no safety rests on it.
"""

from collections.abc import Callable
from enum import Enum

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.interface import ServerId
from lockstep.coordination.zab.messages import Notification, Standing, State, TableNotice, Vote

FINALIZE, TABLE, REBROADCAST, RECALL = "finalize", "table", "rebroadcast", "recall"
RESEND = "resend:"


class Step(Enum):
    IDLE = "idle"
    RECALL = "recall"
    TABLE = "table"
    VOTE = "vote"


class Election:
    """Runs while the server looks; `decided(leader, round, ready)` ends it."""

    def __init__(self, core: Core, nonce: int, decided: Callable[[ServerId, bool], None]) -> None:
        self.core = core
        self.nonce = nonce
        self.decided = decided
        self.round = core.current
        self.step = Step.IDLE
        self.vote = Vote(0, 0, core.me)
        self._votes: dict[ServerId, Vote] = {}
        self._early: dict[ServerId, Notification] = {}
        self._established: dict[ServerId, Notification] = {}
        self._pauses: dict[ServerId, float] = {}
        self._told: dict[ServerId, tuple[int, Vote]] = {}
        self._sound: set[ServerId] = set()
        self._pristine: set[ServerId] = set()
        self._tables: set[ServerId] = set()
        self._standing_since: tuple[int, Vote] | None = None
        self._waited = 0.0
        self._alone = False
        self._founding = False
        self._rebroadcast = 0.0
        self._patience = 0.0

    def start(self) -> None:
        """Look for a leader."""
        self.round += 1
        self.step = Step.TABLE
        self._early.clear()
        self._established.clear()
        self._pauses.clear()
        self._told.clear()
        self._sound.clear()
        self._rebroadcast = self.core.settings.rebroadcast
        self._patience = self.core.settings.finalize_wait
        self.core.timer(REBROADCAST, self._rebroadcast)
        if self.core.standing is Standing.SOUND:
            self._flood_table()
        else:
            self.step = Step.RECALL
            self.core.timer(RECALL, self.core.settings.recall_wait)
            self._ask()
            self._recall()

    def stop(self) -> None:
        self.step = Step.IDLE
        for name in (FINALIZE, TABLE, REBROADCAST, RECALL, *(f"{RESEND}{peer}" for peer in self._pauses)):
            self.core.cancel(name)

    # Recall: a server without memory abstains.

    def _ask(self) -> None:
        self.core.broadcast(self._question())

    def _question(self) -> TableNotice:
        return TableNotice(self.round, self.core.table, self.core.standing, True, self.nonce)

    def answer(self, nonce: int) -> TableNotice:
        """This server's table, in answer to a question (or to none: 0)."""
        return TableNotice(self.round, self.core.table, self.core.standing, False, nonce)

    def _recall(self) -> None:
        core = self.core
        if len(self._sound) >= core.quorum:
            core.remember()
        elif core.standing is Standing.BLANK and self._may_found() and not self._founding:
            self._founding = True
            core.become_member(self._founded)
        if core.standing is Standing.SOUND:
            core.cancel(RECALL)
            self._flood_table()

    def _founded(self) -> None:
        """Nobody votes before its membership is on disk, so that a first epoch proves a quorum of members."""
        self.core.standing = Standing.SOUND
        if self.step is Step.RECALL:
            self._recall()
        elif self.step is Step.VOTE:
            self._start_vote()

    def _may_found(self) -> bool:
        """Whether this is the ensemble's first start, and not the return of a wiped server."""
        servers, pristine = self.core.servers, self._pristine | {self.core.me}
        if len(pristine) == len(servers):
            return True
        return self._alone and len(pristine) >= self.core.quorum and not self._sound

    # The EpochTable flood.

    def _flood_table(self) -> None:
        self._check_established()
        if self.step is Step.IDLE:
            return
        if not self.core.settings.dep:
            self._start_vote()
            return
        self.step = Step.TABLE
        self._tables = {self.core.me}
        self._ask()
        self._check_tables()

    def _check_tables(self) -> None:
        if len(self._tables) == len(self.core.servers):
            self.core.cancel(TABLE)
            self._start_vote()
        elif len(self._tables) == self.core.quorum:
            self.core.timer(TABLE, self.core.settings.table_wait)

    def on_table(self, sender: ServerId, notice: TableNotice) -> None:
        """Merge what a peer knows; a looking server may go on because of it."""
        core = self.core
        before = core.table
        core.table = core.table.merge(notice.table)
        if notice.standing is Standing.SOUND and notice.nonce == self.nonce and not notice.question:
            self._sound.add(sender)  # what was sent to this server's former life does not count
        if notice.standing is Standing.BLANK or (
            notice.standing is Standing.SOUND and notice.table.highest == 0
        ):
            self._pristine.add(sender)
        if self.step is Step.RECALL:
            self._recall()
        elif self.step is Step.TABLE:
            if core.table != before and core.table != notice.table:
                core.broadcast(self.answer(0))
            if notice.standing is Standing.SOUND and sender not in self._tables:
                self._tables.add(sender)
                self._check_tables()

    # Votes.

    def _start_vote(self) -> None:
        core = self.core
        self.step = Step.VOTE
        self._votes = {}
        self._standing_since = None
        if not core.voting:
            self._check_established()
            return
        self.vote = self._initial()
        self._tell_all()
        early, self._early = self._early, {}
        for sender, notification in early.items():
            if self.step is Step.VOTE:
                self._on_vote(sender, notification)
        if self.step is Step.VOTE:
            self._check_established()

    def _initial(self) -> Vote:
        return Vote(self.core.current, self.core.history.last, self.core.me)

    def notification(self) -> Notification:
        return Notification(self.round, self.vote, State.LOOKING, 0)

    def _tell_all(self) -> None:
        self._votes[self.core.me] = self.vote
        self.core.broadcast(self.notification())
        self._tally()

    def on_notification(self, sender: ServerId, notification: Notification) -> None:
        """A vote came while this server looks."""
        if notification.state is not State.LOOKING:
            self._established[sender] = notification
            self._check_established()
            if self.step is Step.VOTE and notification.round < self.round:
                self._resend(sender)
            elif self.step is Step.VOTE and notification.round == self.round and self.core.voting:
                self._on_vote(sender, notification)  # it stands by its vote of this very round
                if self.step is Step.VOTE:
                    self._check_established()
            return
        self._established.pop(sender, None)
        if self.step is Step.VOTE:
            self._on_vote(sender, notification)
        else:
            self._early[sender] = notification

    def _on_vote(self, sender: ServerId, notification: Notification) -> None:
        if not self.core.voting:
            return
        if notification.round < self.round:
            if self.core.settings.fce:
                self._resend(sender)
            elif notification.state is State.LOOKING:
                self.core.send(sender, self.notification())  # ZooKeeper answers a looking peer, once
            return
        if notification.round > self.round:
            self._patience = self.core.settings.finalize_wait
            self.round = notification.round
            self._votes = {sender: notification.vote}
            self.vote = max(self._initial(), notification.vote)
            self._tell_all()
            return
        self._votes[sender] = notification.vote
        if notification.vote > self.vote:
            self.vote = notification.vote
            self._tell_all()
            return
        if notification.vote < self.vote and self.core.settings.fce:
            self._tell_again(sender)
        self._tally()

    def _tell_again(self, peer: ServerId) -> None:
        """FCE: a peer that votes for less may have begun after this vote was sent: say it once more."""
        if self._told.get(peer) != (self.round, self.vote):
            self._told[peer] = (self.round, self.vote)
            self.core.send(peer, self.notification())

    def _resend(self, peer: ServerId) -> None:
        """FCE: a peer with a lower logical clock has not begun yet. Re-send until it does, ever less often,
        so that a server that cannot reach a healthy ensemble's leader does not flood it."""
        if self.core.settings.fce and peer not in self._pauses:
            self._pauses[peer] = self.core.settings.resend_first
            self.core.timer(f"{RESEND}{peer}", self._pauses[peer])

    def _agreed(self) -> bool:
        return sum(vote == self.vote for vote in self._votes.values()) >= self.core.quorum

    def _tally(self) -> None:
        settings = self.core.settings
        if not settings.fce:
            # FLE: every vote starts the wait anew (3.1.1).
            self.core.timer(FINALIZE, settings.finalize_wait if self._agreed() else self._patience)
        elif not self._agreed():
            self._standing_since = None
            self.core.cancel(FINALIZE)
        elif sum(vote == self.vote for vote in self._votes.values()) == len(self.core.servers):
            self._decide(self.vote.leader, ready=False)
        elif self._standing_since != (self.round, self.vote):
            self._standing_since = (self.round, self.vote)
            self.core.timer(FINALIZE, settings.finalize_wait)

    def _check_established(self) -> None:
        """Late voters join the leader that a quorum already follows."""
        for leader, notification in self._established.items():
            if notification.state is State.LEADING and leader != self.core.me:
                support = {
                    server
                    for server, other in self._established.items()
                    if other.vote.leader == leader
                    and (other.round == notification.round or other.epoch == notification.epoch > 0)
                }
                if notification.round == self.round and self.step is Step.VOTE:
                    support |= {server for server, vote in self._votes.items() if vote.leader == leader}
                if len(support) >= self.core.quorum and self.core.standing is Standing.SOUND:
                    self.round = notification.round
                    self.vote = notification.vote
                    self._decide(leader, ready=True)
                    return

    def _decide(self, leader: ServerId, *, ready: bool) -> None:
        self.stop()
        self.decided(leader, ready)

    # Time and connections.

    def on_timer(self, name: str) -> None:
        settings = self.core.settings
        match name:
            case "finalize" if self.step is Step.VOTE:
                if self._agreed():
                    self._decide(self.vote.leader, ready=False)
                else:
                    # Ever less often, as ZooKeeper does: each repetition starts the others' wait anew.
                    self._patience = min(self._patience * 2, settings.rebroadcast_most)
                    self._tell_all()
            case "table" if self.step is Step.TABLE:
                self._start_vote()
            case "recall" if self.step is Step.RECALL:
                self._forget()
            case "rebroadcast" if self.step is not Step.IDLE:
                self._rebroadcast = min(self._rebroadcast * 2, settings.rebroadcast_most)
                self.core.timer(REBROADCAST, self._rebroadcast)
                if self.step is not Step.VOTE or not self.core.voting:
                    self._ask()
                elif settings.fce:
                    self.core.broadcast(self.notification())
            case _ if name.startswith(RESEND) and self.step is Step.VOTE:
                peer = int(name.removeprefix(RESEND))
                self._pauses[peer] = min(self._pauses.get(peer, 0.001) * 2, settings.resend_most)
                if self._votes.get(peer) != self.vote:
                    self.core.send(peer, self.notification())
                    self.core.timer(f"{RESEND}{peer}", self._pauses[peer])

    def _forget(self) -> None:
        """No majority with memory has answered: fall back to what is on disk."""
        if self.core.standing is Standing.FORGETFUL:
            self.core.use_ceiling()
            self._flood_table()
        else:
            self._waited += self.core.settings.recall_wait
            self._alone = self._waited >= self.core.settings.founding_wait
            self.core.timer(RECALL, self.core.settings.recall_wait)
            self._ask()
            self._recall()

    def on_asked(self, peer: ServerId) -> None:
        """A looking peer asked for the table: a server that votes already tells its vote as well."""
        if self.step is Step.VOTE and self.core.voting:
            self.core.send(peer, self.notification())

    def on_up(self, peer: ServerId) -> None:
        """A peer can be reached (again): tell it where this server stands."""
        if self.step is Step.VOTE and self.core.voting:
            self.core.send(peer, self.notification())
        elif self.step is not Step.IDLE:
            self.core.send(peer, self._question())
