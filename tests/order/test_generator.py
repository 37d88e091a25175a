"""LiveRobin's generators (section V-B): one cut a period, no generator that matters, no look that is wasted."""

from collections import deque

from lockstep.order.liverobin import FOLLOWED, MAX_FAILURES, AskEnds, Ends, Generator
from lockstep.order.merge import Merge
from lockstep.order.records import Cut, Order, decode, encode
from lockstep.protocol.machine import Append, Deliver, Effects, Halt, LogRecord, SetTimer, Subscribe


class Topic:
    """The order topic by hand: what generators append lands when the test says so."""

    def __init__(self, *generators: Generator) -> None:
        self.generators = generators
        self.late: deque[bytes] = deque()
        self.cuts: list[Cut] = []

    def take(self, effects: Effects) -> None:
        self.late.extend(effect.value for effect in effects if isinstance(effect, Append) and effect.value)

    def land(self) -> None:
        while self.late:
            value = self.late.popleft()
            record = LogRecord("order", 0, len(self.cuts), 0, None, value)
            cut = decode(value)
            assert isinstance(cut, Cut)
            self.cuts.append(cut)
            for generator in self.generators:
                self.take(generator.on_record(record))

    def see(self, generator: Generator, *ends: int | None) -> None:
        self.take(generator.on_command("", 0, Ends(ends)))


def asks(effects: Effects) -> bool:
    return any(isinstance(effect, Deliver) and effect.item == AskEnds() for effect in effects)


def pause(effects: Effects) -> float:
    return next(effect.after for effect in effects if isinstance(effect, SetTimer))


def generator(rank: int = 0, starts: tuple[int, ...] = (0, 0), **options: int) -> Generator:
    return Generator(f"generator-{rank}", "order", 0, starts, rank=rank, **options)


def test_a_cut_says_where_the_inputs_end_and_is_said_once() -> None:
    topic = Topic(one := generator())
    for _ in range(3):
        topic.see(one, 3, 1)
        topic.land()
    assert topic.cuts == [Cut((3, 1), "generator-0")]


def test_nothing_is_cut_before_the_run_began() -> None:
    topic = Topic(one := generator(starts=(3, 1)))
    topic.see(one, 3, 1)
    assert not topic.late
    topic.see(one, 3, 2)
    topic.land()
    merge = Merge((3, 1))
    merge.follow(0, topic.cuts[0])
    assert [(taken.queue, taken.offset, taken.sn) for taken in merge.take(9)] == [(1, 1, 0)]


def test_an_input_that_cannot_be_asked_keeps_its_last_value_and_the_others_go_on() -> None:
    topic = Topic(one := generator())
    topic.see(one, 3, 1)
    topic.see(one, None, 4)
    topic.land()
    assert topic.cuts[-1].ends == (3, 4)


def test_an_end_that_goes_back_is_not_believed() -> None:
    topic = Topic(one := generator())
    topic.see(one, 3, 1)
    topic.see(one, 0, 2)
    topic.land()
    assert topic.cuts[-1].ends == (3, 2)


def test_the_second_generator_publishes_only_what_stays_uncovered() -> None:
    topic = Topic(first := generator(0), second := generator(1))
    topic.see(first, 3, 1)
    topic.see(second, 3, 1)
    topic.land()
    topic.see(second, 3, 1)
    topic.land()
    assert [cut.by for cut in topic.cuts] == ["generator-0"]


def test_the_second_generator_takes_over_after_two_looks_of_silence() -> None:
    topic = Topic(second := generator(1))
    topic.see(second, 3, 1)
    topic.see(second, 4, 1)
    assert not topic.late
    topic.see(second, 5, 2)
    topic.land()
    assert topic.cuts == [Cut((3, 1), "generator-1")]


def test_a_higher_rank_waits_longer() -> None:
    topic = Topic(third := generator(2))
    for _ in range(4):
        topic.see(third, 3, 1)
    assert not topic.late
    topic.see(third, 3, 1)
    topic.land()
    assert topic.cuts == [Cut((3, 1), "generator-2")]


def test_a_generator_that_hears_others_cut_looks_only_now_and_then() -> None:
    second = generator(1)
    looks = 0
    for beat in range(1, 5 * FOLLOWED + 1):
        second.on_record(LogRecord("order", 0, beat, 0, None, encode(Cut((beat, 0), "generator-0"))))
        looks += asks(second.on_timer("beat"))
    assert looks == 5
    assert asks(second.on_timer("beat")), "and at once when it hears nothing more"


def test_the_first_generator_looks_at_every_beat_whatever_it_hears() -> None:
    first = generator(0)
    for beat in range(1, 9):
        first.on_record(LogRecord("order", 0, beat, 0, None, encode(Cut((beat, 0), "generator-1"))))
        assert asks(first.on_timer("beat"))


def test_looks_become_seldom_when_nothing_comes_in_and_frequent_again_with_the_first_input() -> None:
    one = generator(0)
    for _ in range(600):
        effects = tuple(one.on_timer("beat"))
        one.on_command("", 0, Ends((0, 0)))
    assert pause(effects) == 0.25
    moved = tuple(one.on_command("", 0, Ends((1, 0))))
    assert pause(moved) == 0.004, "it does not wait for the end of the long pause"
    assert pause(one.on_timer("beat")) == 0.004


def test_a_cut_of_another_wakes_an_idle_generator() -> None:
    second = generator(1)
    for _ in range(600):
        second.on_timer("beat")
    cut = LogRecord("order", 0, 0, 0, None, encode(Cut((1, 0), "generator-0")))
    assert pause(second.on_record(cut)) == 0.004


def test_steady_input_of_a_few_records_a_second_keeps_the_period_short() -> None:
    """Section VII, MiB 3: latency at 5 events a second is that of a busy stream."""
    one = generator(0)
    for beat in range(2000):
        effects = tuple(one.on_timer("beat"))
        one.on_command("", 0, Ends((beat // 50, 0)))
        assert pause(effects) == 0.004


def test_a_failed_append_is_said_again_at_the_next_look() -> None:
    topic = Topic(one := generator())
    topic.see(one, 3, 1)
    topic.late.clear()
    one.on_append_failed(None, "timed out")
    topic.see(one, 3, 1)
    topic.land()
    assert topic.cuts == [Cut((3, 1), "generator-0")]


def test_a_generator_whose_log_never_takes_anything_ends_itself() -> None:
    one = generator()
    for _ in range(MAX_FAILURES):
        assert not one.on_append_failed(None, "fenced")
    assert isinstance(next(iter(one.on_append_failed(None, "fenced"))), Halt)


def test_the_first_generator_reads_no_order_topic_and_says_nothing_twice() -> None:
    first = generator(0)
    assert not any(isinstance(effect, Subscribe) for effect in first.on_start(()))
    (append,) = [one for one in first.on_command("", 0, Ends((3, 1))) if isinstance(one, Append)]
    first.on_appended(append.token, 0)
    assert not [one for one in first.on_command("", 0, Ends((3, 1))) if isinstance(one, Append)]


def test_it_may_begin_to_read_anywhere_and_counts_what_is_void() -> None:
    one = generator(1, order_offset=70)
    assert Subscribe("order", 0, 70) in tuple(one.on_start(()))
    for offset, value in enumerate([encode(Order(1, 1, ((0, 1),))), b"not ours", encode(Cut((1, 2, 3)))]):
        one.on_record(LogRecord("order", 0, 70 + offset, 0, None, value))
    assert one.void == 3
