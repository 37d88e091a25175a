"""The follower: connect, promise the epoch, take over the leader's history, follow (paper 3.2, figure 5).

What a synchronisation brings is gathered first and made part of the history in one go at NEWLEADER, in this
order: truncation, transactions, epoch. A crash in between leaves either what was there before or a longer
part of what the leader has; a snapshot replaces all at once. NEWLEADER is acknowledged when the transactions
are on disk; vanilla waits for the epoch, too, and DEP lets a later ACK tell of it: at once if the leader waits
for it, else with the first transaction, in one write.
"""

from collections.abc import Callable
from enum import Enum

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.interface import (
    Following,
    FromLeader,
    ServerId,
    SnapshotStored,
    StoreSnapshot,
    Zxid,
)
from lockstep.coordination.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Body,
    CnxReady,
    Commit,
    Diff,
    FollowerInfo,
    Forwarded,
    LeaderInfo,
    NewLeader,
    Notification,
    Ping,
    Proposal,
    Quorum,
    Refused,
    Snap,
    State,
    TableAck,
    TableUpdate,
    Trunc,
    UpToDate,
    Vote,
)
from lockstep.coordination.zab.records import Logged

CONNECT, PHASE = "connect", "phase"


class Stage(Enum):
    CONNECTING = "connecting"
    DISCOVERY = "discovery"
    SYNCHRONISATION = "synchronisation"
    STORING = "storing a snapshot"
    SYNCHRONISED = "synchronised"
    FOLLOWING = "following"


class Follower:
    def __init__(
        self,
        core: Core,
        leader: ServerId,
        round: int,
        vote: Vote,
        next_link: Callable[[], int],
        look: Callable[[str], None],
    ) -> None:
        self.core = core
        self.leader = leader
        self.round = round
        self.vote = vote
        self.next_link = next_link
        self.look = look
        self.stage = Stage.CONNECTING
        self.link = 0
        self.epoch = 0
        self._follows = True
        self._next_out = 0
        self._next_in = 0
        self._silent = 0
        self._truncate: Zxid | None = None
        self._diff: list[tuple[Zxid, tuple[bytes, ...]]] = []
        self._snapshot: list[bytes] = []
        self._snapshot_size = 0
        self._snapshot_zxid: Zxid | None = None

    # Connecting: with QCN when the leader says that it is ready, else at once and again after a fixed wait.

    def start(self, *, ready: bool) -> None:
        """`ready`: the leader is known to accept connections."""
        self.core.timer(PHASE, self.core.settings.phase_limit)
        if ready or not self.core.settings.qcn:
            self._connect()
        else:
            self.core.timer(CONNECT, self.core.settings.connect_retry)

    def stop(self) -> None:
        self._follows = False
        self.core.cancel(CONNECT)
        self.core.cancel(PHASE)

    def _connect(self) -> None:
        self.core.cancel(CONNECT)
        self.link = self.next_link()
        self._next_out = self._next_in = 0
        self._send(FollowerInfo(self.core.accepted, self.core.voting))

    def on_cnx_ready(self, notice: CnxReady) -> None:
        """A notification of another round is stale; one that comes after the connection is late."""
        if notice.round == self.round and self.stage is Stage.CONNECTING and not self.link:
            self._connect()

    def on_refused(self) -> None:
        """The leader does not lead yet, or the connection failed or broke."""
        if self.stage is Stage.CONNECTING:
            self.link = 0
            self.core.timer(CONNECT, self.core.settings.connect_retry)
        else:
            self.look("the connection to the leader is lost")

    # Messages of the leader.

    def on_quorum(self, message: Quorum) -> None:
        if message.link != self.link:
            return
        if isinstance(message.body, Refused):
            self.on_refused()
            return
        if message.seq != self._next_in:
            if message.seq > self._next_in:
                self.look("a message of the leader was lost")
            return
        self._next_in += 1
        self._silent = 0
        match message.body:
            case Proposal(zxid, txns):
                self._on_proposal(zxid, txns)
            case Commit(zxid):
                self.core.commit(zxid)
            case Ping():
                self._send(Ping())
            case Forwarded(payload):
                self.core.deliver(FromLeader(payload))
            case LeaderInfo(epoch):
                self._on_leader_info(epoch)
            case Trunc(zxid):
                self._truncate = zxid
            case Diff(zxid, txns):
                self._diff.append((zxid, txns))
            case Snap() as piece:
                self._on_snap(piece)
            case NewLeader(epoch, in_doubt):
                self._on_new_leader(epoch, in_doubt)
            case UpToDate(committed):
                self._on_up_to_date(committed)
            case _:
                pass

    # Discovery.

    def _on_leader_info(self, epoch: int) -> None:
        core = self.core
        if epoch < core.accepted:
            self.look(f"server {self.leader} offers epoch {epoch}, and {core.accepted} was accepted before")
            return
        self.stage = Stage.DISCOVERY
        self.epoch = epoch
        core.timer(PHASE, core.settings.sync_limit)
        counts = epoch > core.accepted
        report = AckEpoch(counts, core.current, core.history.last, core.committed, core.history.tails)
        if core.settings.dep:
            core.cover(epoch, self._still(lambda: self._promise(report)))
        elif counts:
            core.accept(epoch)
            core.persist_epochs(self._still(lambda: self._promise(report)))
        else:
            self._promise(report)

    def _promise(self, report: AckEpoch) -> None:
        self.core.accept(self.epoch)
        self.stage = Stage.SYNCHRONISATION
        self._send(report)

    def on_table_update(self, update: TableUpdate) -> None:
        """The second step of the EpochTable's commit: only what is covered by the ceiling is committed."""
        if update.link != self.link:
            return
        core = self.core
        core.table = core.table.merge(update.table)
        ack = TableAck(update.link, update.table.version, dict(core.lives))
        core.cover(update.table.highest, self._still(lambda: core.send(self.leader, ack)))

    # Synchronisation.

    def _on_snap(self, piece: Snap) -> None:
        self._snapshot_zxid = piece.zxid
        self._snapshot.append(piece.data)
        self._snapshot_size += len(piece.data)
        if self._snapshot_size > self.core.settings.snapshot_limit:
            self.look("the leader's snapshot is larger than this server allows")

    def _on_new_leader(self, epoch: int, in_doubt: bool) -> None:
        core = self.core
        if epoch != self.epoch or self.stage is not Stage.SYNCHRONISATION:
            self.look(f"an unexpected NEWLEADER for epoch {epoch}")
        elif self._snapshot_zxid is not None:
            if self._snapshot_zxid < core.committed:
                self.look("the leader's snapshot is older than what was committed here")
                return
            self.stage = Stage.STORING
            blob, self._snapshot = b"".join(self._snapshot), []
            core.deliver(StoreSnapshot(self.link, self._snapshot_zxid, blob))
        else:
            self._take_over()
            if in_doubt:
                core.write_epochs()

    def on_snapshot_stored(self, stored: SnapshotStored) -> None:
        core = self.core
        if stored.token != self.link or self.stage is not Stage.STORING:
            return
        assert self._snapshot_zxid is not None
        entries = [Logged(zxid, txns) for zxid, txns in self._diff]
        self.stage = Stage.SYNCHRONISED
        last = entries[-1].zxid + len(entries[-1].txns) - 1 if entries else self._snapshot_zxid
        core.restore(
            self._snapshot_zxid,
            stored.reference,
            entries,
            self.epoch,
            self._still(lambda: self._acknowledge_durable(last)),
        )

    def _take_over(self) -> None:
        """DIFF and TRUNC: the history becomes the leader's."""
        core = self.core
        if self._truncate is not None:
            core.truncate(self._truncate)
        for zxid, txns in self._diff:
            if not core.history.continues(zxid):
                self.look("the leader's transactions do not continue this history")
                return
            core.log(zxid, txns)
        last = core.history.last
        core.enter(self.epoch)
        self.stage = Stage.SYNCHRONISED
        if core.settings.dep:
            core.when_history_durable(self._still(lambda: self._acknowledge(last)))
            core.defer_epochs(self._still(lambda: self._send(Ack(last))))
        else:
            core.persist_epochs(self._still(lambda: self._acknowledge_durable(last)))

    def _acknowledge_durable(self, last: Zxid) -> None:
        self._acknowledge(last)
        self._send(Ack(last))

    def _acknowledge(self, last: Zxid) -> None:
        self._send(AckNewLeader(last, dict(self.core.lives)))

    def _on_up_to_date(self, committed: Zxid) -> None:
        core = self.core
        if self.stage is not Stage.SYNCHRONISED:
            self.look("UPTODATE came before the history was")
            return
        core.cancel(PHASE)
        core.become_member()
        core.commit(committed)
        self.stage = Stage.FOLLOWING
        core.deliver(Following(self.leader, self.epoch))

    # Broadcast.

    def _on_proposal(self, zxid: Zxid, txns: tuple[bytes, ...]) -> None:
        if self.stage is Stage.STORING:
            self._diff.append((zxid, txns))
            return
        if not self.core.history.continues(zxid):
            self.look("a proposal does not continue this history")
            return
        last = zxid + len(txns) - 1
        self.core.log(zxid, txns, self._still(lambda: self._send(Ack(last))))

    def forward(self, payload: bytes) -> bool:
        if self.stage is not Stage.FOLLOWING:
            return False
        self._send(Forwarded(payload))
        return True

    # Everything else.

    def _send(self, body: Body) -> None:
        self.core.send_quorum(self.leader, self.link, self._next_out, body)
        self._next_out += 1

    def _still(self, then: Callable[[], None]) -> Callable[[], None]:
        """`then`, unless this attempt has ended by the time it is called."""
        link = self.link
        return lambda: then() if self._follows and self.link == link else None

    def notification(self) -> Notification:
        return Notification(self.round, self.vote, State.FOLLOWING, self.epoch)

    def is_left_by(self, server: ServerId, round: int) -> bool:
        """Whether the chosen leader has gone on to a later election, so that it leads no more."""
        return server == self.leader and round > self.round

    def on_beat(self) -> None:
        self._silent += 1
        if self._silent > self.core.settings.silent_beats and self.stage is not Stage.CONNECTING:
            self.look("the leader is silent")

    def on_timer(self, name: str) -> None:
        if name == CONNECT and self.stage is Stage.CONNECTING:
            self._connect()
        elif name == PHASE and self.stage is not Stage.FOLLOWING:
            self.look("the leader did not come up in time")
