"""What the roles of one server share: its history, its epochs, and the making of effects.

Epochs under DEP (paper 3.3.2, and what the paper leaves open):

- acceptedEpoch and currentEpoch live in memory and, through the EpochTable, in the memory of a quorum.
- Before a server accepts an epoch or commits to a table, a **ceiling** at least as high is on its disk. It
  is reserved in spans ahead of need, so that the disk is almost never waited for. A server that lost its
  memory takes its ceiling for every acceptedEpoch: too high is safe, too low would reissue an epoch.
- currentEpoch is written to disk without waiting, if possible in one write with the epoch's first
  transaction. Because records survive in order, a durable transaction of an epoch proves that the epoch is
  durable too; and a leader counts what it inherited as committed only when a quorum has its epoch on disk.
  So a lost currentEpoch is one that nothing committed rested on.
"""

from collections.abc import Callable, Iterable, Sequence

from lockstep.coordination.zab.epoch_table import EpochTable
from lockstep.coordination.zab.history import History, Recovered
from lockstep.coordination.zab.interface import Committed, Restore, ServerId, Zxid
from lockstep.coordination.zab.messages import MESSAGE, Body, Quorum, Standing
from lockstep.coordination.zab.records import RECORD, Ceiling, Checkpointed, Epochs, Logged, Member, Truncated
from lockstep.coordination.zab.settings import Settings
from lockstep.protocol.machine import CancelTimer, Compact, Deliver, Effect, Persist, Send, SetTimer

Then = Callable[[], None]


class Core:
    def __init__(self, me: ServerId, servers: Iterable[ServerId], settings: Settings) -> None:
        self.me = me
        self.servers = tuple(sorted(servers))
        self.peers = tuple(server for server in self.servers if server != me)
        self.quorum = len(self.servers) // 2 + 1
        self.settings = settings
        self.out: list[Effect] = []
        self.history = History(settings.log_keep)
        self.committed: Zxid = 0
        self.standing = Standing.BLANK
        self.voting = False
        self.table = EpochTable.empty(self.servers)
        self.lives: dict[ServerId, int] = {}
        self.current = 0
        self.ceiling = 0
        self._past = 0
        self._reserving = 0
        self._asked = 0
        self._confirmed = 0
        self._log_token = 0
        self._restoring = 0
        self._joining = False
        self._deferred: Then | None = None
        self._waiting: dict[int, list[Then]] = {}

    def recover(self, records: Sequence[RECORD]) -> None:
        """Take over what the disk holds."""
        found = Recovered(records, self.settings.log_keep)
        self.history = found.history
        self.committed = self.history.checkpoint
        self.ceiling = self._reserving = self._past = found.ceiling
        self.voting = found.member
        self.accept(max(found.accepted, found.current))
        self.enter(found.current)
        if not found.member:
            self.standing = Standing.BLANK
        elif self.settings.dep:
            self.standing = Standing.FORGETFUL
            if self.ceiling:
                self._reserve(self.ceiling + self.settings.ceiling_span)
        else:
            self.standing = Standing.SOUND
            self.accept(found.ceiling)  # a disk that was used with DEP before

    # Effects.

    def send(self, to: ServerId, message: MESSAGE) -> None:
        self.out.append(Send(str(to), message))

    def send_quorum(self, to: ServerId, link: int, seq: int, body: Body) -> None:
        self.out.append(Send(str(to), Quorum(link, seq, body)))

    def broadcast(self, message: MESSAGE) -> None:
        for peer in self.peers:
            self.send(peer, message)

    def deliver(self, item: object) -> None:
        self.out.append(Deliver(item))

    def timer(self, name: str, after: float) -> None:
        self.out.append(SetTimer(name, after))

    def cancel(self, name: str) -> None:
        self.out.append(CancelTimer(name))

    # The disk.

    def persist(self, record: RECORD, then: Then | None = None) -> None:
        """Write one record; `then` is called once it is durable, with all before it."""
        if isinstance(record, Logged | Truncated):
            self.write_epochs()
        self._asked += 1
        if isinstance(record, Logged | Truncated):
            self._log_token = self._asked
        if then is not None:
            self._waiting.setdefault(self._asked, []).append(then)
        self.out.append(Persist(record, self._asked))

    def restore(
        self, zxid: Zxid, reference: bytes, entries: Sequence[Logged], epoch: int, then: Then
    ) -> None:
        """Replace the whole history by a snapshot and what came after it, at once, and enter the epoch. The
        application gets it when it is durable, whatever has become of the leader that sent it."""
        self.history.replace(zxid, reference)
        for entry in entries:
            self.history.append(entry.zxid, entry.txns)
        self._restoring += 1

        def restored() -> None:
            self._restoring -= 1
            self.committed = zxid
            self.deliver(Restore(zxid, reference))
            then()

        self._asked += 1
        self._log_token = self._asked
        self._waiting.setdefault(self._asked, []).append(restored)
        self.enter(epoch)
        records = (self.checkpointed(zxid, reference), *entries, Epochs(self.accepted, self.current))
        self.out.append(Compact(records, self._asked))

    def when_history_durable(self, then: Then) -> None:
        """Call `then` as soon as every transaction accepted so far is on disk: now, if it is."""
        if self._confirmed >= self._log_token:
            then()
        else:
            self._waiting.setdefault(self._log_token, []).append(then)

    def persisted(self, token: int) -> None:
        self._confirmed = token
        for then in self._waiting.pop(token, ()):
            then()

    # Epochs.

    @property
    def accepted(self) -> int:
        return self.table.accepted[self.me]

    def accept(self, epoch: int) -> None:
        self.table = self.table.raised(accepted={self.me: epoch})

    def enter(self, epoch: int) -> None:
        """The epoch's history is asked to be written. The table learns of it when that is on disk: others would
        give the epoch back to a server that has lost its memory, and with it what it had not written."""
        self.current = max(self.current, epoch)
        self.when_history_durable(lambda: self._note_current(epoch))

    def _note_current(self, epoch: int) -> None:
        self.table = self.table.raised(current={self.me: epoch})

    def remember(self) -> None:
        """A majority with memory has answered. The currentEpoch that it knows goes with the history on this
        server's disk; without that disk it must not be claimed, and any epoch may have been promised."""
        if self.standing is Standing.BLANK:
            self.accept(self.table.highest)
        else:
            self.current = max(self.current, self.table.current[self.me])
        self.standing = Standing.SOUND

    def cover(self, epoch: int, then: Then) -> None:
        """DEP: call `then` once the ceiling on disk is at least `epoch`; normally that is now."""
        if epoch <= self.ceiling:
            then()
            if epoch + self.settings.ceiling_span // 2 > self._reserving:
                self._reserve(epoch + self.settings.ceiling_span)
        else:
            self._reserve(epoch + self.settings.ceiling_span, then)

    def _reserve(self, epoch: int, then: Then | None = None) -> None:
        self._reserving = max(self._reserving, epoch)

        def reserved() -> None:
            self.ceiling = max(self.ceiling, epoch)
            if then is not None:
                then()

        self.persist(Ceiling(epoch), reserved)

    def use_ceiling(self) -> None:
        """DEP, without memory and without a majority that has one: every server may have accepted as much
        as the ceiling that this server found on its disk."""
        self.table = self.table.raised(accepted=dict.fromkeys(self.servers, self._past))
        self.standing = Standing.SOUND

    def persist_epochs(self, then: Then | None = None) -> None:
        self.persist(Epochs(self.accepted, self.current), then)

    def defer_epochs(self, then: Then) -> None:
        """DEP: write the epochs before the next transaction, in the same go, or at the next beat. A slow disk
        that has begun to write them alone would keep that transaction waiting for a second write."""
        self._deferred = then

    def write_epochs(self) -> None:
        """Write now what was deferred."""
        if self._deferred is not None:
            then, self._deferred = self._deferred, None
            self.persist_epochs(then)

    def become_member(self, then: Then | None = None) -> None:
        """From now on this server counts: its disk has what the ensemble committed."""

        def joined() -> None:
            self.voting = True
            if then is not None:
                then()

        if not self.voting and not self._joining:
            self._joining = True
            self.persist(Member(), joined)

    # The history.

    def log(self, zxid: Zxid, txns: Sequence[bytes], then: Then | None = None) -> None:
        self.history.append(zxid, txns)
        self.persist(Logged(zxid, tuple(txns)), then)

    def truncate(self, zxid: Zxid) -> None:
        assert zxid >= self.committed, "a committed transaction cannot be taken back"
        self.history.truncate(zxid)
        self.persist(Truncated(zxid))

    def commit(self, zxid: Zxid) -> None:
        """Deliver everything up to `zxid`."""
        zxid = min(zxid, self.history.last)
        if zxid <= self.committed or self._restoring:
            return
        for first, txns in self.history.after(self.committed, zxid):
            self.deliver(Committed(first, txns))
        self.committed = zxid

    def checkpoint(self, zxid: Zxid, reference: bytes) -> None:
        if self.history.checkpoint < zxid <= self.committed:
            self.history.checkpointed(zxid, reference)
            self.persist(self.checkpointed(zxid, reference))

    def checkpointed(self, zxid: Zxid, reference: bytes) -> Checkpointed:
        """Repeats what was asked to be written, not only what is confirmed: the host may drop that now."""
        return Checkpointed(
            zxid,
            reference,
            accepted=self.accepted,
            current=self.current,
            ceiling=self._reserving,
            member=self.voting or self._joining,
        )
