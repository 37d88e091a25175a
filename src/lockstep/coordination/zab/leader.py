"""The leader: discovery, synchronisation, broadcast (paper 2.2 and figure 5; 3.3.2 for DEP).

1. Discovery: a quorum of FOLLOWERINFO gives an epoch above every accepted one; LEADERINFO proposes it; a
   quorum of ACKEPOCH promises it. A follower whose (currentEpoch, zxid) is larger makes the leader step back.
   With DEP a quorum then commits the EpochTable that says so, on the very links that promised.
2. Synchronisation: each follower gets what it lacks (DIFF, TRUNC or SNAP) and NEWLEADER. A quorum of
   acknowledgements founds the epoch (with DEP, after a second commit of the EpochTable).
3. What was inherited is committed once a quorum has it, and the epoch, on disk. Then UPTODATE, and service.
4. Broadcast: a proposal is committed when a quorum, the leader among it or not, has it on disk.

Vanilla waits for the disk after steps "epoch chosen" and "quorum promised" here, and twice at the follower.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import ClassVar

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.interface import (
    COUNTER_MASK,
    Dropped,
    FromLeader,
    Leading,
    Proposed,
    Request,
    ServerId,
    SnapshotReady,
    Zxid,
    counter_of,
    epoch_of,
    zxid_of,
)
from lockstep.coordination.zab.link import LeaderLink
from lockstep.coordination.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    CnxReady,
    Commit,
    FollowerInfo,
    Forwarded,
    LeaderInfo,
    Notification,
    Ping,
    Proposal,
    Quorum,
    State,
    TableAck,
    TableUpdate,
    UpToDate,
    Vote,
)
from lockstep.coordination.zab.synchroniser import Synchroniser

PHASE = "phase"


class Phase(IntEnum):
    DISCOVERY = 0
    """Collecting FOLLOWERINFO and ACKEPOCH."""
    SYNCHRONISATION = 1
    """The epoch is promised; bringing followers to this history."""
    FOUNDED = 2
    """A quorum is synchronised; waiting until what was inherited is durable."""
    BROADCAST = 3


class Leader:
    synchroniser_class: ClassVar[type[Synchroniser]] = Synchroniser

    def __init__(self, core: Core, round: int, vote: Vote, step_back: Callable[[str], None]) -> None:
        self.core = core
        self.round = round
        self.vote = vote
        self.step_back = step_back
        self.epoch = 0
        self.phase = Phase.DISCOVERY
        self.links: dict[ServerId, LeaderLink] = {}
        self._leads = True
        self._entered_as = (core.current, core.history.last)
        self._open = False
        self._inherited: Zxid = core.history.last
        self._durable: Zxid = -1
        self._settled = False
        self._synced = False
        self._lonely = 0
        self._founding_version = 0
        self.synchroniser = self.synchroniser_class(core)

    def start(self) -> None:
        core = self.core
        core.timer(PHASE, core.settings.phase_limit)
        if core.settings.qcn:
            core.broadcast(CnxReady(self.round))
        self._choose_epoch()

    def stop(self) -> None:
        self._leads = False
        self.core.cancel(PHASE)

    def _still(self, then: Callable[[], None]) -> Callable[[], None]:
        """`then`, unless the leader has stepped back by the time it is called."""
        return lambda: then() if self._leads else None

    def notification(self) -> Notification:
        epoch = self.epoch if self.phase >= Phase.SYNCHRONISATION else 0
        return Notification(self.round, self.vote, State.LEADING, epoch)

    # Discovery.

    def on_follower_info(self, sender: ServerId, link_id: int, info: FollowerInfo) -> None:
        old = self.links.get(sender)
        if old is not None and old.id >= link_id:
            return
        self._forget(sender)
        if self._open and info.accepted > self.epoch:
            self.step_back(f"server {sender} has accepted epoch {info.accepted}, newer than {self.epoch}")
            return
        link = LeaderLink(self.core, sender, link_id, voting=info.voting, accepted=info.accepted)
        self.links[sender] = link
        if self._open:
            link.send(LeaderInfo(self.epoch))
        else:
            self._choose_epoch()

    def _voters(self) -> list[LeaderLink]:
        return [link for link in self.links.values() if link.voting]

    def _choose_epoch(self) -> None:
        core = self.core
        if self.epoch or len(self._voters()) + 1 < core.quorum:
            return
        self.epoch = 1 + max(
            core.accepted,
            core.table.highest if core.settings.dep else 0,
            epoch_of(core.history.last),
            *(link.accepted for link in self.links.values()),
        )
        core.timer(PHASE, core.settings.phase_limit)
        if core.settings.dep:
            core.cover(self.epoch, self._still(self._propose_epoch))
        else:
            core.accept(self.epoch)
            core.persist_epochs(self._still(self._propose_epoch))

    def _propose_epoch(self) -> None:
        self.core.accept(self.epoch)
        self.core.timer(PHASE, self.core.settings.phase_limit)
        self._open = True
        for link in list(self.links.values()):
            if link.accepted > self.epoch:
                self.step_back(f"server {link.server} has accepted epoch {link.accepted}")
                return
            link.send(LeaderInfo(self.epoch))
        self._check_promises()

    def on_ack_epoch(self, link: LeaderLink, report: AckEpoch) -> None:
        link.report = report
        # Who has this very epoch as its current one got it, and its history, from this leader.
        link.promised = link.voting and (report.counts or report.current == self.epoch)
        if not self._settled and self._behind(report):
            self.step_back(f"server {link.server} is more up to date")
            return
        if self.phase is Phase.DISCOVERY:
            self._check_promises()
        else:
            self.synchroniser.bring_up(link)

    def _behind(self, report: AckEpoch) -> bool:
        """Until a quorum has this epoch on disk, nobody who knows more may be overruled."""
        return report.current < self.epoch and (report.current, report.last) > self._entered_as

    def _promised(self) -> list[LeaderLink]:
        return [link for link in self.links.values() if link.promised]

    def _check_promises(self) -> None:
        core = self.core
        if self.phase is not Phase.DISCOVERY or not self._open or self._synced or self._founding_version:
            return
        promised = self._promised()
        if len(promised) + 1 < core.quorum:
            return
        if core.settings.dep:
            self._commit_table(accepted=True)
        else:
            self._synced = True
            core.timer(PHASE, core.settings.sync_limit)
            core.enter(self.epoch)
            core.persist_epochs(self._still(self._on_epoch_durable))

    # The EpochTable's two-step commit.

    def _commit_table(self, *, accepted: bool) -> None:
        core = self.core
        members = self._promised() if accepted else self._founders()
        entries = dict.fromkeys((core.me, *(link.server for link in members)), self.epoch)
        core.table = core.table.raised(accepted=entries, current=None if accepted else entries, step=1)
        self._founding_version = core.table.version
        for link in members:
            link.table_acked = 0
            core.send(link.server, TableUpdate(link.id, core.table))
        if core.quorum == 1:
            self._on_table_committed()

    def on_table_ack(self, sender: ServerId, ack: TableAck) -> None:
        link = self.links.get(sender)
        if link is None or link.id != ack.link:
            return
        self._bury(ack.lives)
        link.table_acked = max(link.table_acked, ack.version)
        members = self._promised() if self.phase is Phase.DISCOVERY else self._founders()
        committed = [link for link in members if link.table_acked >= self._founding_version]
        if self._founding_version and len(committed) + 1 >= self.core.quorum:
            self._on_table_committed()

    def _bury(self, lives: dict[ServerId, int]) -> None:
        """A follower tells which servers have asked it as ones without memory. Promises of a former life are
        void; and because a majority was asked, one of a quorum says so here, or the asker learnt of this
        epoch."""
        for server, life in lives.items():
            link = self.links.get(server)
            if link is not None and link.life < life:
                self.drop(server)

    def _on_table_committed(self) -> None:
        core = self.core
        self._founding_version = 0
        if self.phase is Phase.DISCOVERY:
            self._synced = True  # later promises need no further table
            core.enter(self.epoch)
            core.defer_epochs(self._still(self._on_epoch_durable))
            self.synchroniser.in_doubt = self._known_committed(self._promised()) < self._inherited
            if self.synchroniser.in_doubt:
                core.write_epochs()
            core.when_history_durable(self._still(self._synchronise))
        elif self.phase is Phase.SYNCHRONISATION:
            self._found()

    def _known_committed(self, links: list[LeaderLink]) -> Zxid:
        return max([self.core.committed, *(link.report.committed for link in links if link.report)])

    # Synchronisation.

    def _on_epoch_durable(self) -> None:
        """The epoch, and with it the inherited history, is on this server's disk."""
        self._durable = max(self._durable, self._inherited)
        if self.phase is Phase.DISCOVERY and not self.core.settings.dep:
            self._synchronise()
        self._advance()

    def _synchronise(self) -> None:
        self.phase = Phase.SYNCHRONISATION
        self.synchroniser.epoch = self.epoch
        self.core.timer(PHASE, self.core.settings.sync_limit)
        for link in list(self.links.values()):
            if link.report is not None:
                self.synchroniser.bring_up(link)
        self._check_founded()

    def on_snapshot_ready(self, ready: SnapshotReady) -> None:
        given_up = self.synchroniser.on_snapshot_ready(ready)
        if given_up is not None:
            self.drop(given_up.server)

    def on_ack_new_leader(self, link: LeaderLink, ack: AckNewLeader) -> None:
        if not link.streaming:
            return
        self._bury(ack.lives)
        link.synchronised = True
        if self.phase is Phase.BROADCAST:
            self._up_to_date(link)
        else:
            self._check_founded()

    def _founders(self) -> list[LeaderLink]:
        return [link for link in self._promised() if link.synchronised]

    def _check_founded(self) -> None:
        if self.phase is not Phase.SYNCHRONISATION or self._founding_version:
            return
        if len(self._founders()) + 1 < self.core.quorum:
            return
        if self.core.settings.dep:
            self._commit_table(accepted=False)
        else:
            self._found()

    def _found(self) -> None:
        self.phase = Phase.FOUNDED
        self.core.commit(self._known_committed(self._founders()))
        if self.core.committed < self._inherited:
            self.core.write_epochs()
        self._advance()
        self._serve_if_settled()

    def _serve_if_settled(self) -> None:
        core = self.core
        if self.phase is not Phase.FOUNDED or core.committed < self._inherited:
            return
        self.phase = Phase.BROADCAST
        core.cancel(PHASE)
        core.deliver(Leading(self.epoch))
        for link in self.links.values():
            if link.synchronised:
                self._up_to_date(link)

    def _up_to_date(self, link: LeaderLink) -> None:
        link.up_to_date = True
        link.send(UpToDate(self.core.committed))
        self._advance()

    # Broadcast.

    def propose(self, txns: tuple[bytes, ...], epoch: int) -> Proposed | None:
        core = self.core
        if self.phase is not Phase.BROADCAST or epoch != self.epoch or not txns:
            return None
        last = core.history.last
        zxid = last + 1 if epoch_of(last) == self.epoch else zxid_of(self.epoch, 1)
        if counter_of(zxid) + len(txns) > COUNTER_MASK:
            self.step_back("this epoch's zxids are used up")
            return None
        limit = core.settings.batch_limit
        for at in range(0, len(txns), limit):
            self._send_out(zxid + at, txns[at : at + limit])
        return Proposed(zxid)

    def _send_out(self, zxid: Zxid, txns: tuple[bytes, ...]) -> None:
        end = zxid + len(txns) - 1
        self.core.log(zxid, txns, self._still(lambda: self._on_logged(end)))
        for link in self.links.values():
            if link.streaming:
                link.send(Proposal(zxid, txns))

    def _on_logged(self, zxid: Zxid) -> None:
        self._durable = zxid
        self._advance()

    def on_ack(self, link: LeaderLink, ack: Ack) -> None:
        if ack.zxid > link.acked:
            link.acked = ack.zxid
            self._advance()

    def _advance(self) -> None:
        """Commit what a quorum has on disk, in this epoch. The first quorum must be one that promised."""
        if self.phase < Phase.FOUNDED:
            return
        counted = (link for link in self.links.values() if link.synchronised)
        if not self._settled:
            counted = (link for link in self._founders())
        durable = sorted([self._durable, *(link.acked for link in counted)], reverse=True)
        if len(durable) < self.core.quorum:
            return
        zxid = durable[self.core.quorum - 1]
        self._settled = self._settled or zxid >= self._inherited
        if zxid <= self.core.committed:
            return
        self.core.commit(zxid)
        self._serve_if_settled()
        for link in self.links.values():
            if link.up_to_date:
                link.send(Commit(self.core.committed))

    # Everything else.

    def on_quorum(self, sender: ServerId, message: Quorum) -> None:
        link = self.links.get(sender)
        if link is None or link.id != message.link:
            return
        if not link.takes(message.seq):
            if link.lost:
                self.drop(sender)
            return
        match message.body:
            case Ack() as ack:
                self.on_ack(link, ack)
            case Forwarded(payload):
                if self.phase is Phase.BROADCAST:
                    self.core.deliver(Request(sender, payload))
            case AckEpoch() as report:
                self.on_ack_epoch(link, report)
            case AckNewLeader() as ack_new:
                self.on_ack_new_leader(link, ack_new)
            case _:
                pass

    def to_server(self, server: ServerId, payload: bytes) -> None:
        if server == self.core.me:
            self.core.deliver(FromLeader(payload))
        elif (link := self.links.get(server)) is not None and link.up_to_date:
            link.send(Forwarded(payload))

    def on_beat(self) -> None:
        for link in list(self.links.values()):
            link.silent += 1
            if link.silent > self.core.settings.silent_beats:
                self.drop(link.server)
            else:
                link.send(Ping())
        if self.phase is Phase.DISCOVERY:
            return  # its own limit ends it
        self._lonely = 0 if self._has_quorum() else self._lonely + 1
        if self._lonely >= self.core.settings.silent_beats:
            self.step_back("it has lost its quorum")

    def _has_quorum(self) -> bool:
        """Enough followers to serve with or, before that, to found the epoch with."""
        serving = self.phase is Phase.BROADCAST
        if not self._settled:
            able = [link for link in self.links.values() if link.may_promise]
        else:
            able = list(self.links.values())
        return sum(link.synchronised or not serving for link in able) + 1 >= self.core.quorum

    def on_timer(self, name: str) -> None:
        if name == PHASE and self.phase is not Phase.BROADCAST:
            self.step_back("no quorum came together in time")

    def on_looking(self, sender: ServerId, round: int) -> None:
        """A peer looks for a leader. If it was a follower of a later round, it has left."""
        if round > self.round and sender in self.links:
            self.drop(sender)
            if self.phase is not Phase.DISCOVERY and not self._has_quorum():
                self.step_back("it has lost its quorum")

    def on_epoch_seen(self, sender: ServerId, epoch: int) -> None:
        if self.epoch and epoch > self.epoch:
            self.step_back(f"server {sender} is in epoch {epoch}, newer than {self.epoch}")

    def drop(self, server: ServerId) -> None:
        if self._forget(server):
            self.core.deliver(Dropped(server))
            if self._founding_version:
                self._founding_version = 0  # do not wait for the one that is gone
                self._check_promises()
                self._check_founded()

    def _forget(self, server: ServerId) -> bool:
        link = self.links.pop(server, None)
        if link is not None:
            self.synchroniser.forget(link)
        return link is not None
