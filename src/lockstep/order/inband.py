"""LiveRobin as the paper has it: heartbeats in band (section V, Fig. 6), for topics that Lockstep itself owns.

Cuts (`liverobin.py`) leave inputs as their producers wrote them; the price is that an input waits for its cut. In
a topic of our own, heartbeats can stand among the events. Then an event is consumed as soon as it is its
queue's turn, before its heartbeat, and only a queue that is ahead of the others waits.

- `HeartbeatGenerator`: one number after the other, a period apart. The paper leaves its death open: here several
  run, each with a rank, and go on from the highest number that the heartbeat topic holds. Over stage topics, which
  need no M, it appends each heartbeat to them too (`beat.py`).
- `Merger`, the paper's M, one or more per source: copies events and heartbeats, in whatever order they come, into
  a topic that we own. The copies of several mergers are one stream: the first of each number counts.
- `InBandTask`: a replica of a stage. Its merge is Algorithm 1; it propagates a heartbeat into its outputs where it
  first receives it.

Everybody numbers what it writes, events and heartbeats apart. A reader takes the event whose number is next, and
any heartbeat above the last one (`Numbers`): so repeated, late and out-of-order appends are void, for every reader
of the topic alike. No event may be missing (`outbox.py`); a heartbeat may: the next one stands for it as well.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from lockstep.order.liverobin import MAX_FAILURES
from lockstep.order.outbox import Outbox
from lockstep.order.pace import Pace
from lockstep.order.records import Number
from lockstep.protocol.machine import (
    Append,
    Compact,
    Deliver,
    Effects,
    Halt,
    LogRecord,
    Machine,
    Message,
    SetTimer,
    Subscribe,
    Token,
)

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""

IDLE_BEAT = 0.05
"""Seconds between two heartbeats while nobody else writes: so long may the first event after a silence wait."""
LISTENING = 0.02
"""Who hears others beat looks every so many seconds whether they still do."""
PATIENCE = 3
"""How many of these times without a heartbeat it takes, for each rank: longer than `IDLE_BEAT`."""


class Event(msgspec.Struct, frozen=True, tag_field="is", tag="event", forbid_unknown_fields=True):
    """Event `number` of its stream, from 0 on."""

    number: int
    value: bytes


class Heartbeat(
    msgspec.Struct,
    frozen=True,
    tag_field="is",
    tag="heartbeat",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A pulse that flows through the whole graph, numbered from 1 on. `by` is for those who generate."""

    sequence: Number
    by: str = ""


Item: TypeAlias = Event | Heartbeat
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Event | Heartbeat)


def encode(item: Item) -> bytes:
    return _encoder.encode(item)


def decode(data: bytes) -> Item | None:
    """The item, or None for anything that is not one."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Numbers(msgspec.Struct, frozen=True):
    """What a stream holds so far: `events` is the number of the next event, `heartbeats` the last heartbeat's."""

    events: int = 0
    heartbeats: int = 0

    def after(self, item: Item | None) -> "Numbers | None":
        """The numbers after this item, or None if it is void: repeated, or an event ahead of a missing one."""
        match item:
            case Event(number=number) if number == self.events:
                return Numbers(self.events + 1, self.heartbeats)
            case Heartbeat(sequence=sequence) if sequence > self.heartbeats:
                return Numbers(self.events, sequence)
        return None


class HeartbeatGenerator(Machine):
    """Appends heartbeats to their topic, and to the partitions `into`, if M does not.

    The one of rank 0 beats all the time. The one of rank r listens to the heartbeat topic, takes over when it has
    heard nothing for a while, and steps back when it hears somebody else. While nobody else appends anything to
    `into`, there is nothing to merge, and the pauses grow longer.
    """

    def __init__(
        self,
        topic: str,
        *,
        name: str,
        into: Sequence[Place] = (),
        rank: int = 0,
        period: float = 0.010,
        offset: int = 0,
    ) -> None:
        self._topic = topic
        self._name = name
        self._into = tuple(into)
        self._rank = rank
        self._pace = Pace(period, idle=IDLE_BEAT if into else period)
        self._listening = max(period, LISTENING)
        self._offset = offset
        self._numbers = Numbers()
        self._said = 0
        self._beats = rank == 0
        self._silent = 0
        self._ends: list[int | None] = [None] * len(self._into)
        self._failures = 0

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return (Subscribe(self._topic, 0, self._offset), SetTimer("beat", self._pace.pause))

    def on_record(self, record: LogRecord) -> Effects:
        item = decode(record.value or b"")
        after = self._numbers.after(item)
        if after is not None and isinstance(item, Heartbeat):
            self._numbers = after
            if item.by != self._name:
                self._silent = 0
                self._beats = self._rank == 0
        return ()

    def on_timer(self, name: str) -> Effects:
        self._silent += 1
        if not self._beats and self._silent <= PATIENCE * self._rank:
            yield SetTimer("beat", self._listening)
            return
        self._beats = True
        self._pace.rested()
        yield SetTimer("beat", self._pace.pause)
        self._said = max(self._said, self._numbers.heartbeats) + 1
        heartbeat = encode(Heartbeat(self._said, self._name))
        yield Append(self._topic, 0, heartbeat, key=b"heartbeat")
        for queue, (topic, partition) in enumerate(self._into):
            yield Append(topic, partition, heartbeat, token=queue)

    def on_appended(self, token: Token, offset: int) -> Effects:
        self._failures = 0
        if isinstance(token, int):
            others = offset != self._ends[token]
            self._ends[token] = offset + 1
            if others and self._pace.moved():
                return (SetTimer("beat", self._pace.pause),)
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """The next heartbeat stands for this one as well."""
        self._failures += 1
        if self._failures > MAX_FAILURES:
            return (Halt(f"the log took none of {MAX_FAILURES} heartbeats: {reason}"),)
        return ()


class MergerPosition(msgspec.Struct, frozen=True):
    """How far a merger has copied: everything before is in its topic for sure."""

    source_offset: int
    heartbeat_offset: int
    numbers: Numbers


class Merger(Machine):
    """M of Fig. 6: copies one source's events and the heartbeats into one partition of ours."""

    RECORDS = MergerPosition
    outbox_class: type[Outbox[MergerPosition]] = Outbox

    def __init__(
        self, source: Place, heartbeats: str, out: Place, *, start: int = 0, checkpoint_every: int = 20
    ) -> None:
        self._source = source
        self._heartbeats = heartbeats
        self._out = out
        self._every = checkpoint_every
        self._since = 0
        self._position = MergerPosition(start, 0, Numbers())
        self._outbox = self.outbox_class()

    def on_start(self, durable: Sequence[Message]) -> Effects:
        match durable:
            case [*_, MergerPosition() as position]:
                self._position = position
        return (
            Subscribe(*self._source, self._position.source_offset),
            Subscribe(self._heartbeats, 0, self._position.heartbeat_offset),
        )

    def on_record(self, record: LogRecord) -> Effects:
        at = self._position
        item: Item | None
        if (record.topic, record.partition) == self._source:
            item = Event(at.numbers.events, record.value or b"")
            moved = MergerPosition(record.offset + 1, at.heartbeat_offset, at.numbers)
        else:
            item = decode(record.value or b"")
            moved = MergerPosition(at.source_offset, record.offset + 1, at.numbers)
        numbers = at.numbers.after(item)
        if item is None or numbers is None:
            self._position = moved
            return
        self._position = msgspec.structs.replace(moved, numbers=numbers)
        self._since += 1
        due = self._since >= self._every
        self._since = 0 if due else self._since
        yield from self._outbox.put([(self._out, encode(item))], self._position if due else None)

    def on_timer(self, name: str) -> Effects:
        return self._outbox.again()

    def on_appended(self, token: Token, offset: int) -> Effects:
        self._outbox.appended(token)
        return _kept(self._outbox.safe())

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        return self._outbox.failed(token)


class QueuePosition(msgspec.Struct, frozen=True):
    """How far a queue is consumed: everything below `offset` is consumed or void."""

    offset: int
    numbers: Numbers


class TaskPosition(msgspec.Struct, frozen=True):
    """Where a task is: the state of Algorithm 1, and the numbers of what it has written."""

    queues: tuple[QueuePosition, ...]
    next: int
    highest: int
    sn: int
    outs: tuple[int, ...]


class Consumed(msgspec.Struct, frozen=True):
    """Delivered: event `number` of `queue` is number `sn` of this stage."""

    queue: int
    number: int
    sn: int
    value: bytes


Process: TypeAlias = Callable[[int, bytes], Sequence[tuple[int, bytes]]]
"""What a stage does with an event of a queue: the outputs, each with the index of its output partition."""


class InBandMerge:
    """Algorithm 1 over queues with heartbeats in band, one item at a time.

    The paper marks a queue as inactive whose heartbeat is consumed, until all of them are. Here a queue is active
    while no other has a lower last heartbeat. That is the same if no heartbeat is missing; where one is missing,
    the next one of its queue stands for it.
    The Java twin is `io.lockstep.order.InBandMerge`.
    """

    def __init__(self, starts: Sequence[QueuePosition]) -> None:
        self.consumed = list(starts)
        self.next = 0
        self.highest = 0
        self._arrived = [start.numbers for start in starts]
        self._queues: list[deque[tuple[Item, QueuePosition]]] = [deque() for _ in starts]

    def arrive(self, queue: int, offset: int, item: Item | None) -> None:
        """The record at `offset` of the queue's partition."""
        after = self._arrived[queue].after(item)
        if item is not None and after is not None:
            self._arrived[queue] = after
            self._queues[queue].append((item, QueuePosition(offset + 1, after)))

    def take(self) -> tuple[int, Item] | None:
        """The next event, or the next heartbeat that is received for the first time; None: it would block."""
        while self._queues[self.next]:
            queue = self.next
            item, self.consumed[queue] = self._queues[queue].popleft()
            first = isinstance(item, Heartbeat) and item.sequence > self.highest
            if isinstance(item, Heartbeat):
                self.highest = max(self.highest, item.sequence)
            self._turn()
            if first or isinstance(item, Event):
                return queue, item
        return None

    def active(self) -> list[int]:
        lowest = min(at.numbers.heartbeats for at in self.consumed)
        return [queue for queue, at in enumerate(self.consumed) if at.numbers.heartbeats == lowest]

    def _turn(self) -> None:
        active = self.active()
        self.next = next((queue for queue in active if queue > self.next), active[0])


class InBandTask(Machine):
    """One replica of a stage: merges its queues, processes, and writes events and heartbeats onwards."""

    RECORDS = TaskPosition
    merge_class: type[InBandMerge] = InBandMerge
    outbox_class: type[Outbox[TaskPosition]] = Outbox

    def __init__(
        self,
        queues: Sequence[Place],
        outs: Sequence[Place],
        process: Process,
        *,
        checkpoint_every: int = 20,
    ) -> None:
        self._queues = list(queues)
        self._outs = list(outs)
        self._process = process
        self._every = checkpoint_every
        self._since = 0
        self._sn = 0
        self._written = [0] * len(self._outs)
        self._merge = self.merge_class([QueuePosition(0, Numbers())] * len(self._queues))
        self._outbox = self.outbox_class()

    def on_start(self, durable: Sequence[Message]) -> Effects:
        match durable:
            case [*_, TaskPosition() as position]:
                self._resume(position)
        return [
            Subscribe(topic, partition, at.offset)
            for (topic, partition), at in zip(self._queues, self._merge.consumed, strict=True)
        ]

    def on_record(self, record: LogRecord) -> Effects:
        queue = self._queues.index((record.topic, record.partition))
        self._merge.arrive(queue, record.offset, decode(record.value or b""))
        while (taken := self._merge.take()) is not None:
            yield from self._taken(*taken)
        yield from _kept(self._outbox.safe())

    def on_timer(self, name: str) -> Effects:
        return self._outbox.again()

    def on_appended(self, token: Token, offset: int) -> Effects:
        self._outbox.appended(token)
        return _kept(self._outbox.safe())

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        return self._outbox.failed(token)

    def _taken(self, queue: int, item: Item) -> Effects:
        outputs: list[tuple[Place, bytes]] = []
        match item:
            case Heartbeat():
                outputs = [(out, encode(item)) for out in self._outs]
            case Event(number=number, value=value):
                yield Deliver(Consumed(queue, number, self._sn, value))
                self._sn += 1
                for out, output in self._process(queue, value):
                    outputs.append((self._outs[out], encode(Event(self._written[out], output))))
                    self._written[out] += 1
        self._since += 1
        due = self._since >= self._every
        if due:
            self._since = 0
        yield from self._outbox.put(outputs, self._position() if due else None)

    def _position(self) -> TaskPosition:
        merge = self._merge
        return TaskPosition(tuple(merge.consumed), merge.next, merge.highest, self._sn, tuple(self._written))

    def _resume(self, position: TaskPosition) -> None:
        self._merge = self.merge_class(position.queues)
        self._merge.next = position.next
        self._merge.highest = position.highest
        self._sn = position.sn
        self._written = list(position.outs)


def _kept(position: Message | None) -> Effects:
    return () if position is None else (Compact((position,)),)
