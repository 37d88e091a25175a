"""The merge: turns accepted order records into one sequence of inputs, the same on every replica.

`Merge` is what the Java source does inside Spark, as a pure machine: `follow` takes an order record, `take`
hands out the next inputs as (queue, offset, `_sn`), as far as the order reaches. The caller fetches the
record at that offset, waiting for it if it has not arrived. For cuts, the sequence equals Algorithm 1's on
queues that have a heartbeat at each cut (`algorithm1.py`, the oracle in the tests); the `next` pointer goes
on across cycles. For orders, it is what the leader said.

The `Position` is all that a replica must remember to go on: it is the Spark offset of the shard.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.records import Cut, Order, OrderRecord, Skip


class Input(msgspec.Struct, frozen=True):
    """The input at `offset` of `queue` is number `sn` of the shard; skipped inputs use up their number."""

    queue: int
    offset: int
    sn: int
    skipped: bool = False


class Position(msgspec.Struct, frozen=True):
    """Where a shard is in its order: the same on every site for the same `_sn`."""

    order_offset: int
    """Records of the order topic below this one are fully consumed."""
    inputs: tuple[int, ...]
    """The next offset to consume of each queue."""
    done: int
    """Inputs of the record at `order_offset` that are consumed already."""
    sn: int
    next: int
    epoch: int
    version: int


class Merge:
    """One shard at one replica."""

    def __init__(self, starts: tuple[int, ...]) -> None:
        self.inputs = list(starts)
        self.sn = 0
        self.accepted = Acceptance(len(starts), ends=starts)
        self._next = 0
        self._pending: deque[tuple[int, Cut | Order]] = deque()
        self._plan: Iterator[int] = iter(())
        self._planned = -1
        self._done = 0

    def follow(self, order_offset: int, record: OrderRecord | None) -> bool:
        """Take the record at `order_offset` of the order topic; False if it is void."""
        accepted = self.accepted.accept(record)
        if isinstance(accepted, Cut | Order):
            self._pending.append((order_offset, accepted))
        return accepted is not None

    def take(self, limit: int) -> list[Input]:
        """The next inputs in the order, at most `limit`; fewer when the order does not reach further."""
        taken: list[Input] = []
        while len(taken) < limit:
            queue = next(self._plan, None)
            if queue is None:
                if not self._advance():
                    break
                continue
            offset = self.inputs[queue]
            self.inputs[queue] = offset + 1
            self._done += 1
            skipped = (queue, offset) in self.accepted.skipped
            taken.append(Input(queue, offset, self.sn, skipped))
            self.sn += 1
        return taken

    def _advance(self) -> bool:
        """Go on to the next record of the order; False if none is known."""
        if self._planned >= 0:
            self._pending.popleft()
            self._planned = -1
        if not self._pending:
            return False
        self._planned, record = self._pending[0]
        self._done = 0
        match record:
            case Cut(ends=ends):
                counts = [end - at for end, at in zip(ends, self.inputs, strict=True)]
                self._plan = self._interleave(counts)
            case Order(runs=runs):
                self._plan = (queue for queue, count in runs for _ in range(count))
        return True

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
