"""Heartbeats in band (section V-B, Fig. 6): the merge is Algorithm 1, and the pulse flows through the graph."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lockstep.order import algorithm1
from lockstep.order.inband import (
    Event,
    Heartbeat,
    HeartbeatGenerator,
    InBandMerge,
    InBandTask,
    Item,
    Merger,
    MergerPosition,
    Numbers,
    QueuePosition,
    TaskPosition,
    decode,
    encode,
)
from lockstep.order.outbox import Outbox
from lockstep.protocol.machine import Append, Compact, Deliver, Effects, LogRecord, SetTimer, Subscribe

ORIGIN = QueuePosition(0, Numbers())


def stream(shape: Sequence[bool | None]) -> list[Item]:
    """A queue's items, numbered: True for an event, False for a heartbeat, None for one that is missing."""
    items: list[Item] = []
    numbers = Numbers()
    missing = 0
    for is_event in shape:
        if is_event is None:
            missing += 1
            continue
        item: Item = Event(numbers.events, b"") if is_event else Heartbeat(numbers.heartbeats + missing + 1)
        missing *= is_event
        items.append(item)
        numbers = numbers.after(item) or numbers
    return items


def record(place: tuple[str, int], offset: int, item: Item) -> LogRecord:
    return LogRecord(*place, offset, 0, None, encode(item))


def appended(effects: Effects) -> list[tuple[str, int, Item | None]]:
    return [
        (effect.topic, effect.partition, decode(effect.value or b""))
        for effect in effects
        if isinstance(effect, Append)
    ]


def last_heartbeat(items: Sequence[Item]) -> int:
    return max((item.sequence for item in items if isinstance(item, Heartbeat)), default=0)


def merged(queues: Sequence[Sequence[Item]], random: Random) -> list[tuple[int, Event]]:
    """What the merge takes if the queues' items arrive in some order."""
    merge = InBandMerge([ORIGIN] * len(queues))
    taken: list[tuple[int, Event]] = []
    arrivals = [number for number, items in enumerate(queues) for _ in items]
    random.shuffle(arrivals)
    at = [0] * len(queues)
    for number in arrivals:
        merge.arrive(number, at[number], queues[number][at[number]])
        at[number] += 1
        while (found := merge.take()) is not None:
            queue, item = found
            if isinstance(item, Event):
                taken.append((queue, item))
    return taken


def shapes(*items: bool | None) -> st.SearchStrategy[list[list[bool | None]]]:
    return st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.sampled_from(items), max_size=15), min_size=n, max_size=n)
    )


def judged(queues: Sequence[Sequence[Item]], judge: algorithm1.Algorithm1) -> list[tuple[int, int]]:
    """Queue and number of the events, as the algorithm has them."""
    for number, items in enumerate(queues):
        judge.queues[number].extend(
            algorithm1.Event(number, item.number)
            if isinstance(item, Event)
            else algorithm1.Heartbeat(item.sequence)
            for item in items
        )
    return [(item.queue, item.offset) for item in judge.run() if isinstance(item, algorithm1.Event)]


@given(shapes(True, False), st.randoms(use_true_random=False))
def test_the_merge_is_algorithm_1_however_the_items_arrive(
    shapes: list[list[bool | None]], random: Random
) -> None:
    queues = [stream(shape) for shape in shapes]
    expected = judged(queues, algorithm1.Algorithm1(len(queues)))
    assert judged(queues, algorithm1.Algorithm1WithGaps(len(queues))) == expected
    assert [(queue, event.number) for queue, event in merged(queues, random)] == expected


@given(shapes(True, True, False, False, None), st.randoms(use_true_random=False))
def test_where_heartbeats_are_missing_the_order_is_one_and_no_cycle_overtakes_another(
    shapes: list[list[bool | None]], random: Random
) -> None:
    queues = [stream(shape) for shape in shapes]
    taken = merged(queues, random)
    expected = judged(queues, algorithm1.Algorithm1WithGaps(len(queues)))
    assert [(queue, event.number) for queue, event in taken] == expected
    cycles = {
        (queue, item): last_heartbeat(items[:place])
        for queue, items in enumerate(queues)
        for place, item in enumerate(items)
        if isinstance(item, Event)
    }
    assert [cycles[event] for event in taken] == sorted(cycles[event] for event in taken)
    passed = min(last_heartbeat(items) for items in queues)
    assert {event for event, cycle in cycles.items() if cycle < passed} <= set(taken)


def test_an_event_is_consumed_before_its_heartbeat() -> None:
    """What cuts cannot give: nothing waits here but the queue that is ahead."""
    merge = InBandMerge([ORIGIN, ORIGIN])
    merge.arrive(0, 0, Event(0, b"a"))
    assert merge.take() == (0, Event(0, b"a"))


def test_repeated_late_and_foreign_records_are_void() -> None:
    merge = InBandMerge([ORIGIN])
    for offset, item in enumerate(
        [Event(1, b"b"), Event(0, b"a"), Event(0, b"x"), None, Heartbeat(0), Event(1, b"c")]
    ):
        merge.arrive(0, offset, item)
    taken = [merge.take() for _ in range(3)]
    assert taken == [(0, Event(0, b"a")), (0, Event(1, b"c")), None]


def test_a_heartbeat_is_propagated_once_into_every_output_where_it_is_first_received() -> None:
    queues, outs = [("in", 0), ("in", 1)], [("out", 0), ("out", 1)]
    task = InBandTask(queues, outs, lambda queue, value: [(1, value)])
    effects = [
        *task.on_record(record(queues[0], 0, Event(0, b"a"))),
        *task.on_record(record(queues[1], 0, Heartbeat(1))),
        *task.on_record(record(queues[0], 1, Event(1, b"b"))),
        *task.on_record(record(queues[0], 2, Heartbeat(1))),
    ]
    assert appended(effects) == [
        ("out", 1, Event(0, b"a")),
        ("out", 0, Heartbeat(1)),
        ("out", 1, Heartbeat(1)),
        ("out", 1, Event(1, b"b")),
    ]


def test_a_task_that_restarts_at_its_position_writes_what_it_wrote_before() -> None:
    queues, outs = [("in", 0), ("in", 1)], [("out", 0)]
    items = [stream([True, True, False, True, False]), stream([True, False, False, True, True])]

    def feed(task: InBandTask, starts: Sequence[int]) -> tuple[list[object], list[TaskPosition]]:
        written: list[object] = []
        positions: list[TaskPosition] = []
        for queue, start in enumerate(starts):
            for offset, item in list(enumerate(items[queue]))[start:]:
                for effect in task.on_record(record(queues[queue], offset, item)):
                    match effect:
                        case Append(value=value, token=token):
                            written.append(decode(value or b""))
                            positions += kept(task.on_appended(token, 0))
                        case Deliver(item=consumed):
                            written.append(consumed)
                        case Compact(records=(TaskPosition() as position,)):
                            positions.append(position)
        return written, positions

    whole, positions = feed(
        InBandTask(queues, outs, lambda queue, value: [(0, value)], checkpoint_every=1), (0, 0)
    )
    assert len(positions) > 5
    for position in positions:
        again = InBandTask(queues, outs, lambda queue, value: [(0, value)])
        starts = [effect.offset for effect in again.on_start([position]) if isinstance(effect, Subscribe)]
        rest, _ = feed(again, starts)
        assert rest == whole[len(whole) - len(rest) :]


def kept(effects: Effects) -> list[TaskPosition]:
    return [
        position
        for effect in effects
        if isinstance(effect, Compact)
        for position in effect.records
        if isinstance(position, TaskPosition)
    ]


def test_a_generator_counts_on_from_what_the_topic_holds() -> None:
    generator = HeartbeatGenerator("beats", name="first")
    generator.on_record(record(("beats", 0), 0, Heartbeat(1)))
    generator.on_record(record(("beats", 0), 1, Heartbeat(7)))
    assert appended(generator.on_timer("beat")) == [("beats", 0, Heartbeat(8, "first"))]


def test_the_second_generator_beats_while_the_first_is_silent() -> None:
    second = HeartbeatGenerator("beats", name="second", rank=1)
    for number in range(1, 5):
        second.on_record(record(("beats", 0), number - 1, Heartbeat(number, "first")))
        assert not appended(second.on_timer("beat"))
    silent = [appended(second.on_timer("beat")) for _ in range(4)]
    assert silent[:2] == [[], []]
    assert silent[2:] == [[("beats", 0, Heartbeat(5, "second"))], [("beats", 0, Heartbeat(6, "second"))]]
    second.on_record(record(("beats", 0), 9, Heartbeat(5, "second")))
    assert appended(second.on_timer("beat")), "its own heartbeats do not silence it"
    second.on_record(record(("beats", 0), 10, Heartbeat(30, "first")))
    assert not appended(second.on_timer("beat"))


def test_a_generator_puts_each_heartbeat_into_the_stage_topics_too() -> None:
    generator = HeartbeatGenerator("beats", name="first", into=[("a", 0), ("b", 1)])
    beat = Heartbeat(1, "first")
    assert appended(generator.on_timer("beat")) == [("beats", 0, beat), ("a", 0, beat), ("b", 1, beat)]


def test_a_generator_rests_while_nobody_else_writes() -> None:
    generator = HeartbeatGenerator("beats", name="first", into=[("a", 0)], period=0.010)

    def beat(offset: int) -> float:
        """The pause after a heartbeat that lands at this offset."""
        effects = list(generator.on_timer("beat"))
        [pause] = [effect.after for effect in effects if isinstance(effect, SetTimer)]
        for effect in effects:
            if isinstance(effect, Append) and effect.topic == "a":
                sooner = list(generator.on_appended(effect.token, offset))
                pause = sooner[0].after if sooner and isinstance(sooner[0], SetTimer) else pause
        return pause

    for offset in range(1000):
        pause = beat(offset)
    assert pause == 0.05
    assert beat(1001) == 0.010, "an event stands at 1000"


def test_a_merger_copies_events_and_heartbeats_as_they_come() -> None:
    merger = Merger(("in", 0), "beats", ("merged", 0), start=7)
    assert list(merger.on_start(())) == [Subscribe("in", 0, 7), Subscribe("beats", 0, 0)]
    effects = [
        *merger.on_record(LogRecord("in", 0, 7, 0, None, b"a")),
        *merger.on_record(record(("beats", 0), 0, Heartbeat(1))),
        *merger.on_record(record(("beats", 0), 1, Heartbeat(1))),
        *merger.on_record(LogRecord("in", 0, 9, 0, None, b"b")),  # offset 8 is a transaction marker
    ]
    assert [item for _, _, item in appended(effects)] == [Event(0, b"a"), Heartbeat(1), Event(1, b"b")]


def test_a_merger_keeps_only_positions_behind_which_everything_is_in_the_topic() -> None:
    merger = Merger(("in", 0), "beats", ("merged", 0), checkpoint_every=1)
    tokens = [
        effect.token
        for offset in range(3)
        for effect in merger.on_record(LogRecord("in", 0, offset, 0, None, b"x"))
        if isinstance(effect, Append)
    ]
    assert not list(merger.on_appended(tokens[1], 1)), "the first is not confirmed"
    assert list(merger.on_appended(tokens[0], 0)) == [Compact((MergerPosition(2, 0, Numbers(2, 0)),))]


def test_after_a_failure_everything_from_there_on_is_appended_again_in_order() -> None:
    outbox: Outbox[str] = Outbox()
    tokens = [
        effect.token
        for value in (b"a", b"b", b"c")
        for effect in outbox.put([(("t", 0), value)], value.decode())
        if isinstance(effect, Append)
    ]
    outbox.appended(tokens[0])
    assert outbox.safe() == "a"
    assert list(outbox.failed(tokens[1])) == [SetTimer("again", 0.005)]
    outbox.appended(tokens[2])
    assert outbox.safe() is None, "c stands before b in the log, and is void there"
    assert not list(outbox.put([(("t", 0), b"d")], None)), "nothing overtakes"
    again = [effect for effect in outbox.again() if isinstance(effect, Append)]
    assert [effect.value for effect in again] == [b"b", b"c", b"d"]
    outbox.appended(tokens[1])
    assert outbox.safe() is None, "the answer to an earlier attempt means nothing"
    for effect in again:
        outbox.appended(effect.token)
    assert outbox.safe() == "c"
