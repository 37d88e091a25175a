"""Heartbeats in band in the simulator: `lockstep sim inband`.

Two stages in a row, as in the paper's Fig. 6: sources, two mergers for each, a first stage that reads them all and
writes two partitions, a second stage that reads those; every part runs twice or more, and all of them crash.
Promises: at every stage one sequence at all replicas and over all restarts, nothing lost, nothing repeated,
progress once faults stop; and the sequence is the one that Algorithm 1, to the letter (`algorithm1.py`), gives on
what the topics hold.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

import msgspec

from lockstep.order import algorithm1
from lockstep.order.inband import (
    Consumed,
    Event,
    Heartbeat,
    HeartbeatGenerator,
    InBandMerge,
    InBandTask,
    Item,
    Merger,
    MergerPosition,
    Numbers,
    Place,
    QueuePosition,
    TaskPosition,
    decode,
)
from lockstep.order.outbox import Outbox
from lockstep.protocol.machine import Effects, Machine, Message, NodeId, Token
from lockstep.sim.checkers.order import no_gap
from lockstep.sim.faults import MILLISECOND, SECOND, Permits
from lockstep.sim.history import History, Violation
from lockstep.sim.scenario import Scenario
from lockstep.sim.world import World

HEARTBEATS = "heartbeats"
PERIOD = 0.080
AS_ALGORITHM_1 = "the sequence is Algorithm 1's"
NOTHING_LOST = "nothing is lost once faults stop"
SPLIT = (("stage", 0), ("stage", 1))


def split(queue: int, value: bytes) -> list[tuple[int, bytes]]:
    """The first stage's work: some events vanish, some cause two, each to its partition."""
    number = int(value)
    return [(number % 2, value)] * (number % 5 and 1 + (number % 3 == 0))


def keep(queue: int, value: bytes) -> list[tuple[int, bytes]]:
    return []


class InBand(Scenario):
    """One run of the graph."""

    title = "LiveRobin with heartbeats in band: generators, mergers and two stages die"
    bugs = ("next-reset", "tie-by-arrival", "hole-accepted", "not-deduplicated", "failure-forgotten")
    permits = Permits(loose=False, lost_disks=0)
    calm_at = 1500 * MILLISECOND
    duration = 6 * SECOND

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self.sources = rng.randint(2, 3)
        replicas = range(1, rng.randint(2, 3) + 1)
        self.generators = [f"generator-{rank}" for rank in range(2)]
        self.mergers = {f"merger-{source}-{one}": source for source in range(self.sources) for one in (1, 2)}
        self.stages = [[f"{stage}-{one}" for one in replicas] for stage in ("first", "second")]
        self.nodes = [*self.generators, *self.mergers, *self.stages[0], *self.stages[1]]
        self.values: list[list[bytes]] = [[] for _ in range(self.sources)]

    @property
    def queues(self) -> tuple[Sequence[Place], Sequence[Place]]:
        """What each of the two stages reads."""
        return [(f"merged-{source}", 0) for source in range(self.sources)], SPLIT

    def machine(self, node: NodeId) -> Machine:
        if node in self.generators:
            rank = self.generators.index(node)
            return HeartbeatGenerator(HEARTBEATS, name=node, rank=rank, period=PERIOD)
        if node in self.mergers:
            source = self.mergers[node]
            merger = _MERGERS.get(self.bug or "", Merger)
            return merger((f"in-{source}", 0), HEARTBEATS, self.queues[0][source])
        task = _TASKS.get(self.bug or "", InBandTask)
        if node in self.stages[0]:
            return task(self.queues[0], SPLIT, split)
        return task(self.queues[1], (), keep)

    def begin(self, world: World) -> None:
        super().begin(world)
        for source in range(self.sources):
            pace = int(self.rng.choice((2, 10, 50)) * MILLISECOND)
            world.after(self.rng.randint(1, 50 * MILLISECOND), self._grow, source, pace)

    def _grow(self, source: int, pace: int) -> None:
        world = self.world
        assert world is not None
        if world.now > self.calm_at or len(self.values[source]) > 50:
            return
        for _ in range(self.rng.choice((1, 1, 1, 5))):
            value = b"%d" % self.rng.randrange(1000)
            world.append_to_log(f"in-{source}", 0, value)
            self.values[source].append(value)
        world.after(self.rng.randint(1, 2 * pace), self._grow, source, pace)

    def expected(self, stage: int) -> int:
        """How many events the stage has to consume in all."""
        values = [value for source in self.values for value in source]
        return len(values) if stage == 0 else sum(len(split(0, value)) for value in values)

    def settled(self, history: History) -> bool:
        return all(self._caught_up(history, node, stage) for stage in (0, 1) for node in self.stages[stage])

    def _caught_up(self, history: History, node: NodeId, stage: int) -> bool:
        """In any of its lives: one that begins at a position behind the last input delivers nothing more."""
        done = (
            sequence.deliveries[-1].item.sn + 1
            for sequence in history.sequences
            if sequence.node == node and sequence.deliveries
        )
        return max(done, default=0) >= self.expected(stage)

    def check(self, history: History) -> Iterable[Violation]:
        for stage in (0, 1):
            sequences = [one for one in history.sequences if one.node in self.stages[stage]]
            yield from no_gap(sequences, lambda item: int(item.sn))
            oracle = list(self._oracle(self.queues[stage]))
            for sequence in sequences:
                for delivered in sequence.deliveries:
                    item: Consumed = delivered.item
                    right = oracle[item.sn] if item.sn < len(oracle) else None
                    if right != (item.queue, item.number):
                        detail = f"{sequence.name}: number {item.sn} is {item}, and should be {right}"
                        yield Violation(AS_ALGORITHM_1, detail, delivered.at)
                        break
            for node in self.stages[stage]:
                if not self._caught_up(history, node, stage):
                    yield Violation(NOTHING_LOST, f"{node} never consumes all {self.expected(stage)} events")

    def _oracle(self, queues: Sequence[Place]) -> Iterator[tuple[int, int]]:
        """Algorithm 1 on what the topics hold, the first of each number counting."""
        assert self.world is not None
        judge = algorithm1.Algorithm1WithGaps(len(queues))
        for queue, (topic, partition) in enumerate(queues):
            events, heartbeats = 0, 0
            offset = 0
            while records := self.world.log.read(topic, partition, offset):
                offset = records[-1].offset + 1
                for record in records:
                    match decode(record.value or b""):
                        case Event(number=number) if number == events:
                            judge.queues[queue].append(algorithm1.Event(queue, number))
                            events += 1
                        case Heartbeat(sequence=sequence) if sequence > heartbeats:
                            judge.queues[queue].append(algorithm1.Heartbeat(sequence))
                            heartbeats = sequence
        for item in judge.run():
            if isinstance(item, algorithm1.Event):
                yield item.queue, item.offset


class _AnyNumber(Numbers, frozen=True):
    """Planted: any event above the last number counts, also when one before it is missing."""

    def after(self, item: Item | None) -> "Numbers | None":
        match item:
            case Event(number=number) if number >= self.events:
                return _AnyNumber(number + 1, self.heartbeats)
        after = super().after(item)
        return None if after is None else _AnyNumber(after.events, after.heartbeats)


class _NoNumbers(Numbers, frozen=True):
    """Planted: nothing is void."""

    def after(self, item: Item | None) -> "Numbers | None":
        match item:
            case Event():
                return _NoNumbers(self.events + 1, self.heartbeats)
            case Heartbeat(sequence=sequence):
                return _NoNumbers(self.events, sequence)
        return None


class _MergeAnyNumber(InBandMerge):
    def __init__(self, starts: Sequence[QueuePosition]) -> None:
        super().__init__(starts)
        self._arrived = [_AnyNumber(at.events, at.heartbeats) for at in self._arrived]


class _MergeNoNumbers(InBandMerge):
    def __init__(self, starts: Sequence[QueuePosition]) -> None:
        super().__init__(starts)
        self._arrived = [_NoNumbers(at.events, at.heartbeats) for at in self._arrived]


class _MergeByArrival(InBandMerge):
    """Planted: a queue that has nothing is passed over instead of waited for."""

    def take(self) -> tuple[int, Item] | None:
        for _ in self.consumed:
            taken = super().take()
            if taken is not None:
                return taken
            self._turn()
        return None


class _TaskAnyNumber(InBandTask):
    merge_class = _MergeAnyNumber


class _TaskNoNumbers(InBandTask):
    merge_class = _MergeNoNumbers


class _TaskByArrival(InBandTask):
    merge_class = _MergeByArrival


class _TaskNextReset(InBandTask):
    """Planted: after a restart the first queue is next again."""

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return super().on_start(
            [
                msgspec.structs.replace(position, next=InBandMerge(position.queues).active()[0])
                for position in durable
                if isinstance(position, TaskPosition)
            ]
        )


class _Forgetful(Outbox[MergerPosition]):
    """Planted: an append that failed is taken for done."""

    def failed(self, token: Token) -> Effects:
        self.appended(token)
        return ()


class _MergerForgetful(Merger):
    outbox_class = _Forgetful


_TASKS: dict[str, type[InBandTask]] = {
    "next-reset": _TaskNextReset,
    "tie-by-arrival": _TaskByArrival,
    "hole-accepted": _TaskAnyNumber,
    "not-deduplicated": _TaskNoNumbers,
}
_MERGERS: dict[str, type[Merger]] = {"failure-forgotten": _MergerForgetful}
