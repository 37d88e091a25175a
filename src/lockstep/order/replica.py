"""A replica that follows an order: reads order topic and inputs, delivers the inputs in the agreed order.

It does in Python, as a machine, what the `lockstep` source does inside Spark: `Merge` says which input is
next, and the replica waits until that input has arrived. Now and then it makes its position durable, as a
Spark checkpoint does; after a crash it goes on from there and delivers again what lay behind: the
same inputs under the same `_sn`, so that nobody downstream notices.
"""

from collections.abc import Sequence

from lockstep.order.merge import Input, Merge, Position
from lockstep.order.records import Queue, decode
from lockstep.protocol.machine import (
    Compact,
    Deliver,
    Effect,
    Effects,
    LogRecord,
    Machine,
    Message,
    Subscribe,
)


class Replica(Machine):
    """One replica of one shard. `queues` names the (topic, partition) of each input, `starts` where a new
    run begins in each, `growing` those whose topics may grow."""

    RECORDS = Position

    merge_class: type[Merge] = Merge

    def __init__(
        self,
        topic: str,
        shard: int,
        queues: tuple[Queue, ...],
        *,
        starts: tuple[int, ...] = (),
        checkpoint_every: int = 20,
        growing: frozenset[Queue] = frozenset(),
    ) -> None:
        self._topic = topic
        self._shard = shard
        self.queues = list(queues)
        self._growing = growing
        self._every = checkpoint_every
        self._merge = self.merge_class(starts or (0,) * len(queues), growing)
        self._arrived: list[int] = []
        self._waiting: Input | None = None
        self._since = 0

    @property
    def position(self) -> Position:
        """Where the next delivery begins."""
        return self._merge.position()

    def on_start(self, durable: Sequence[Message]) -> Effects:
        order_offset = 0
        match durable:
            case [*_, Position() as position]:
                self._merge = self.merge_class.at(position, self._growing)
                order_offset = position.order_offset
                self.queues += position.added
        self._arrived = list(self._merge.inputs)
        return (
            Subscribe(self._topic, self._shard, order_offset),
            *(
                Subscribe(topic, partition, start)
                for (topic, partition), start in zip(self.queues, self._arrived, strict=True)
            ),
        )

    def on_record(self, record: LogRecord) -> Effects:
        if (record.topic, record.partition) == (self._topic, self._shard):
            self._merge.follow(record.offset, decode(record.value or b""))
        else:
            self._arrived[self.queues.index((record.topic, record.partition))] = record.offset + 1
        return self._deliver()

    def _deliver(self) -> Effects:
        effects: list[Effect] = []
        while True:
            if self._waiting is None:
                if self._since >= self._every:
                    self._since = 0
                    effects.append(Compact((self._merge.position(),)))
                self._waiting = next(iter(self._merge.take(1)), None)
                effects += self._admit()
            if self._waiting is None or self._waiting.offset >= self._arrived[self._waiting.queue]:
                return effects
            effects.append(Deliver(self._waiting))
            self._waiting = None
            self._since += 1

    def _admit(self) -> Effects:
        """Follow the queues that the cut in hand has added."""
        accepted = self._merge.accepted
        for number in range(len(self.queues), len(self._merge.inputs)):
            queue = accepted.added[number - accepted.queues]
            self.queues.append(queue)
            self._arrived.append(0)
            yield Subscribe(*queue, 0)
