"""The one history of transactions that a server has accepted: the part in memory, and what a disk gives back.

Epochs are unique to their leader and each leader sends its transactions in order, so that two histories that
both hold a transaction of one epoch agree on everything up to it. `common` rests on that: the last zxids of
each epoch are enough to find where two histories part (paper 2.2: DIFF, TRUNC or SNAP follow from it).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from lockstep.coordination.zab.interface import Zxid, counter_of, epoch_of
from lockstep.coordination.zab.records import (
    RECORD,
    Ceiling,
    Checkpointed,
    Epochs,
    Logged,
    Member,
    Truncated,
)
from lockstep.errors import LockstepError

TAILS = 1024
"""How many epochs' ends a follower reports; older ones are brought up by snapshot."""


class History:
    """Transactions after `start`, and the checkpoint that stands for what came before."""

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
        self.start: Zxid = 0
        self.checkpoint: Zxid = 0
        self.reference: bytes | None = None
        self._zxids: list[Zxid] = []
        self._txns: list[bytes] = []
        self._ends: list[Zxid] = []

    @property
    def last(self) -> Zxid:
        return self._zxids[-1] if self._zxids else self.start

    def __len__(self) -> int:
        return len(self._zxids)

    def continues(self, zxid: Zxid) -> bool:
        """Whether `zxid` may follow the last transaction: no gap, or the first of a later epoch."""
        last = self.last
        return zxid == last + 1 or (epoch_of(zxid) > epoch_of(last) and counter_of(zxid) == 1)

    def append(self, zxid: Zxid, txns: Sequence[bytes]) -> None:
        assert self.continues(zxid), (hex(zxid), hex(self.last))
        self._zxids.extend(range(zxid, zxid + len(txns)))
        self._txns.extend(txns)
        end = zxid + len(txns) - 1
        if self._ends and epoch_of(self._ends[-1]) == epoch_of(end):
            self._ends[-1] = end
        else:
            self._ends.append(end)

    def truncate(self, zxid: Zxid) -> None:
        """Forget everything after `zxid`."""
        assert zxid >= self.start, (hex(zxid), hex(self.start))
        cut = bisect_right(self._zxids, zxid)
        del self._zxids[cut:], self._txns[cut:]
        while self._ends and epoch_of(self._ends[-1]) > epoch_of(self.last):
            self._ends.pop()
        if self._ends and self._ends[-1] > self.last:
            self._ends[-1] = self.last
        if self._ends and self._ends[-1] == 0:
            self._ends.pop()

    def after(self, zxid: Zxid, upto: Zxid | None = None) -> Iterator[tuple[Zxid, tuple[bytes, ...]]]:
        """The transactions after `zxid` (and not after `upto`), in runs of consecutive zxids."""
        at = bisect_right(self._zxids, zxid)
        stop = len(self._zxids) if upto is None else bisect_right(self._zxids, upto)
        while at < stop:
            first = self._zxids[at]
            end = bisect_right(self._zxids, first | 0xFFFFFFFF, at, stop)
            yield first, tuple(self._txns[at:end])
            at = end

    @property
    def tails(self) -> tuple[Zxid, ...]:
        """The last zxid of each epoch, newest first."""
        return tuple(reversed(self._ends[-TAILS:]))

    def common(self, tails: Iterable[Zxid]) -> Zxid | None:
        """The last zxid that this history shares with the one that has these tails; None if that was before
        the part in memory."""
        mine = {epoch_of(end): end for end in self._ends}
        for tail in tails:
            end = mine.get(epoch_of(tail))
            if end is not None:
                shared = min(tail, end)
                return shared if shared >= self.start else None
        return 0 if self.start == 0 else None

    def checkpointed(self, zxid: Zxid, reference: bytes) -> None:
        """The application has its state after `zxid`: keep only the last `keep` transactions before it."""
        assert self.checkpoint <= zxid <= self.last, (hex(zxid), hex(self.last))
        self.checkpoint, self.reference = zxid, reference
        cut = bisect_right(self._zxids, zxid) - self.keep
        if cut > 0:
            self.start = self._zxids[cut - 1]
            del self._zxids[:cut], self._txns[:cut]
            self._drop_ends()

    def rebase(self, zxid: Zxid, reference: bytes) -> None:
        """Begin at a checkpoint that was found on disk: what was before it may be there in part only."""
        cut = bisect_right(self._zxids, zxid)
        del self._zxids[:cut], self._txns[:cut]
        self.start = self.checkpoint = zxid
        self.reference = reference
        self._drop_ends()

    def replace(self, zxid: Zxid, reference: bytes) -> None:
        """Nothing but the state after `zxid` (SNAP)."""
        self.start = self.checkpoint = zxid
        self.reference = reference
        self._zxids.clear()
        self._txns.clear()
        self._ends = [zxid] if zxid else []

    def _drop_ends(self) -> None:
        while self._ends and epoch_of(self._ends[0]) < epoch_of(self.start):
            del self._ends[0]
        if self.start and (not self._ends or epoch_of(self._ends[0]) > epoch_of(self.start)):
            self._ends.insert(0, self.start)


class Recovered:
    """What a server finds on its disk."""

    def __init__(self, records: Sequence[RECORD], keep: int = 0) -> None:
        self.history = History(keep)
        self.member = False
        self.accepted = self.current = self.ceiling = 0
        for record in records:
            self._replay(record)
        if self.history.start and self.history.reference is None:
            raise LockstepError(
                f"the transaction log begins after {self.history.start:#x} and no snapshot covers what was before",
                hint="restore the missing log files or snapshot, or empty the data folder to rejoin without it",
            )

    def _replay(self, record: RECORD) -> None:
        history = self.history
        match record:
            case Logged(zxid, txns):
                if not history and zxid > history.start and not history.continues(zxid):
                    history.start = zxid - 1  # what came before was dropped: a checkpoint must follow
                fresh = txns[max(0, history.start + 1 - zxid) :] if zxid <= history.start else txns
                if fresh:
                    history.append(zxid + len(txns) - len(fresh), fresh)
            case Truncated(zxid):
                history.truncate(max(zxid, history.start))
            case Epochs(accepted, current):
                self.accepted = max(self.accepted, accepted)
                self.current = max(self.current, current)
            case Ceiling(epoch):
                self.ceiling = max(self.ceiling, epoch)
            case Member():
                self.member = True
            case Checkpointed(zxid, reference, accepted, current, ceiling, member):
                if history.start <= zxid <= history.last:
                    history.rebase(zxid, reference)
                else:
                    history.replace(zxid, reference)
                self.accepted = max(self.accepted, accepted)
                self.current = max(self.current, current)
                self.ceiling = max(self.ceiling, ceiling)
                self.member = self.member or member
