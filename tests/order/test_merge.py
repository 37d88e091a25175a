"""The merge equals Algorithm 1 (section V-B), wherever it is stopped and whatever the cuts."""

from hypothesis import given
from hypothesis import strategies as st
from restarts import check_restarts

from lockstep.order.algorithm1 import Algorithm1, Event, Heartbeat
from lockstep.order.merge import Merge
from lockstep.order.records import Claim, Cut, Order, Skip

queues_and_growths = st.integers(1, 5).flatmap(
    lambda queues: st.lists(
        st.lists(st.integers(0, 6), min_size=queues, max_size=queues), min_size=1, max_size=12
    )
)


def oracle(growths: list[list[int]]) -> list[tuple[int, int]]:
    queues = len(growths[0])
    algorithm = Algorithm1(queues)
    at = [0] * queues
    for number, growth in enumerate(growths, start=1):
        for queue, count in enumerate(growth):
            for _ in range(count):
                algorithm.queues[queue].append(Event(queue, at[queue]))
                at[queue] += 1
            algorithm.queues[queue].append(Heartbeat(number))
    return [(item.queue, item.offset) for item in algorithm.run() if isinstance(item, Event)]


def cuts(growths: list[list[int]]) -> list[Cut]:
    ends = [0] * len(growths[0])
    made = []
    for growth in growths:
        ends = [end + count for end, count in zip(ends, growth, strict=True)]
        made.append(Cut(tuple(ends)))
    return made


@given(queues_and_growths, st.integers(1, 7))
def test_the_merge_of_cuts_is_algorithm_1_however_it_is_read(growths: list[list[int]], step: int) -> None:
    merge = Merge((0,) * len(growths[0]))
    merged = []
    for offset, cut in enumerate(cuts(growths)):
        merge.follow(offset, cut)
        merged += merge.take(step)
    while taken := merge.take(step):
        merged += taken
    assert [(one.queue, one.offset) for one in merged] == oracle(growths)
    assert [one.sn for one in merged] == list(range(len(merged)))


@given(queues_and_growths, st.data())
def test_cuts_of_several_generators_in_any_interleaving_agree_with_their_running_maximum(
    growths: list[list[int]], data: st.DataObject
) -> None:
    made = cuts(growths)
    late = data.draw(st.lists(st.sampled_from(made), max_size=10))
    mixed = data.draw(st.permutations(made + late))
    readers = [Merge((0,) * len(growths[0])) for _ in range(2)]
    sequences = []
    for reader in readers:
        for offset, cut in enumerate(mixed):
            reader.follow(offset, cut)
        sequences.append(reader.take(10_000))
    assert sequences[0] == sequences[1]
    assert tuple(readers[0].inputs) == made[-1].ends


def test_the_next_pointer_goes_on_across_cycles() -> None:
    merge = Merge((0, 0, 0))
    merge.follow(0, Cut((1, 0, 0)))
    merge.follow(1, Cut((2, 1, 1)))
    # cycle 1: event of 0, heartbeats of 1, 2, 0: the next poll is queue 1, not queue 0
    assert [one.queue for one in merge.take(9)] == [0, 1, 2, 0]


def test_orders_of_a_fenced_epoch_repeated_orders_and_gaps_are_void() -> None:
    merge = Merge((0, 0))
    assert merge.follow(0, Claim(1))
    assert merge.follow(1, Order(1, 1, ((0, 2),)))
    assert not merge.follow(2, Order(1, 1, ((0, 2),))), "published twice"
    assert not merge.follow(3, Order(1, 3, ((1, 1),))), "a version is missing"
    assert merge.follow(4, Claim(2))
    assert not merge.follow(5, Order(1, 2, ((1, 5),))), "a zombie's late append"
    assert merge.follow(6, Order(2, 2, ((1, 1), (0, 1))))
    assert not merge.follow(7, None), "somebody else's bytes"
    assert [(one.queue, one.offset) for one in merge.take(9)] == [(0, 0), (0, 1), (1, 0), (0, 2)]
    assert merge.accepted.void == 4


def test_a_skipped_input_keeps_its_number_and_is_marked() -> None:
    merge = Merge((0,))
    merge.follow(0, Skip(0, 1, "does not parse"))
    merge.follow(1, Cut((3,)))
    assert [(one.sn, one.skipped) for one in merge.take(9)] == [(0, False), (1, True), (2, False)]


@given(queues_and_growths, st.data())
def test_a_replica_that_restarts_at_its_position_goes_on_with_the_same_sequence(
    growths: list[list[int]], data: st.DataObject
) -> None:
    queues = len(growths[0])
    check_restarts(cuts(growths), queues, queues, data)
