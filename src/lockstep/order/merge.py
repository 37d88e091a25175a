"""The merge: turns accepted order records into one sequence of inputs, the same on every replica.

`Merge` is what the Java source does inside Spark, as a pure machine: `follow` takes an order record, `take`
hands out the next inputs as (queue, offset, `_sn`), as far as the order reaches. The caller fetches the
record at that offset, waiting for it if it has not arrived. For cuts, the sequence equals Algorithm 1's on
queues that have a heartbeat at each cut (`algorithm1.py`, the oracle in the tests); the `next` pointer goes
on across cycles. A queue that a cut adds takes part from that cut's cycle on, and begins at offset 0. For orders,
the sequence is what the leader said.

The `Position` is all that a replica must remember to go on: it is the Spark offset of the shard.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.records import Cut, Order, OrderRecord, Queue


class Input(msgspec.Struct, frozen=True):
    """The input at `offset` of `queue` is number `sn` of the shard; skipped inputs use up their number."""

    queue: int
    offset: int
    sn: int
    skipped: bool = False


class Position(msgspec.Struct, frozen=True):
    """Where a shard is in its order. Everything but `done` is as it was before the record at `order_offset`."""

    order_offset: int
    """Order records below this one are consumed; reading goes on here."""
    done: int
    """Inputs that are consumed already of those that the record at `order_offset` admits."""
    inputs: tuple[int, ...]
    sn: int
    next: int
    ends: tuple[int, ...]
    epoch: int
    version: int
    skips: tuple[tuple[int, int], ...] = ()
    """Skips that were announced and not met yet."""
    added: tuple[Queue, ...] = ()
    """The queues behind those that the run began with: `inputs` and `ends` have them too."""

    @property
    def upcoming(self) -> int:
        """The `_sn` of the next input."""
        return self.sn + self.done


class Merge:
    """One shard at one replica. `growing`: those of its queues whose topics may grow."""

    acceptance_class: type[Acceptance] = Acceptance

    def __init__(self, starts: tuple[int, ...], growing: frozenset[Queue] = frozenset()) -> None:
        self.inputs = list(starts)
        self.sn = 0
        self.accepted = self.acceptance_class(len(starts), ends=starts, growing=growing)
        self._next = 0
        self._pending: deque[tuple[int, Acceptance, Cut | Order]] = deque()
        self._read = 0
        self._current: Position | None = None
        self._plan: Iterator[int] = iter(())
        self._ahead = 0

    @classmethod
    def at(cls, position: Position, growing: frozenset[Queue] = frozenset()) -> "Merge":
        """A merge that goes on at `position`: feed it the order topic from `position.order_offset` on."""
        merge = cls(position.inputs)
        merge.sn = position.sn
        merge.accepted = cls.acceptance_class(
            len(position.inputs) - len(position.added),
            position.ends,
            position.epoch,
            position.version,
            set(position.skips),
            growing=growing,
            added=position.added,
        )
        merge._next = position.next
        merge._read = position.order_offset
        merge._ahead = position.done
        return merge

    def position(self) -> Position:
        """Where the next `take` begins."""
        if self._current is not None:
            return msgspec.structs.replace(self._current, done=self.sn - self._current.sn + self._ahead)
        if self._pending:
            offset, before, _ = self._pending[0]
            return self._anchored(offset, before)
        return self._anchored(self._read, self.accepted)

    def follow(self, order_offset: int, record: OrderRecord | None) -> bool:
        """Take the record at `order_offset` of the order topic; False if it is void."""
        before = self.accepted.copy()
        accepted = self.accepted.accept(record)
        self._read = order_offset + 1
        if isinstance(accepted, Cut | Order):
            self._pending.append((order_offset, before, accepted))
        return accepted is not None

    def take(self, limit: int) -> list[Input]:
        """The next inputs in the order, at most `limit`; fewer when the order does not reach further."""
        if self._ahead:
            self._ahead -= len(self._step(self._ahead))
            if self._ahead:
                return []
        return self._step(limit)

    def _step(self, limit: int) -> list[Input]:
        taken: list[Input] = []
        while len(taken) < limit:
            queue = next(self._plan, None)
            if queue is None:
                self._current = None
                if not self._pending:
                    break
                self._begin()
                continue
            offset = self.inputs[queue]
            self.inputs[queue] = offset + 1
            skipped = (queue, offset) in self.accepted.skipped
            if skipped:
                self.accepted.skipped.discard((queue, offset))
            taken.append(Input(queue, offset, self.sn, skipped))
            self.sn += 1
        return taken

    def _begin(self) -> None:
        """Plan the inputs that the next order record admits."""
        order_offset, before, record = self._pending.popleft()
        self._current = self._anchored(order_offset, before)
        match record:
            case Cut(ends=ends):
                self.inputs += [0] * (len(ends) - len(self.inputs))  # a partition that was added begins there
                self._plan = self._interleave([end - at for end, at in zip(ends, self.inputs, strict=True)])
            case Order(runs=runs):
                self._plan = (queue for queue, count in runs for _ in range(count))

    def _anchored(self, order_offset: int, before: Acceptance) -> Position:
        return Position(
            order_offset=order_offset,
            done=self._ahead,
            inputs=tuple(self.inputs),
            sn=self.sn,
            next=self._next,
            ends=before.ends,
            epoch=before.epoch,
            version=before.version,
            skips=tuple(sorted(skip for skip in before.skipped if skip[1] >= self.inputs[skip[0]])),
            added=before.added,
        )

    def _interleave(self, counts: list[int]) -> Iterator[int]:
        """One cycle of Algorithm 1: round robin over the active queues, each leaving at its heartbeat."""
        active = [True] * len(counts)
        left = len(counts)
        queue = self._next
        while True:
            if counts[queue] > 0:
                counts[queue] -= 1
                yield queue
            else:
                active[queue] = False
                left -= 1
                if left == 0:
                    active = [True] * len(counts)
            queue = (queue + 1) % len(counts)
            while not active[queue]:
                queue = (queue + 1) % len(counts)
            if left == 0:
                self._next = queue
                return
