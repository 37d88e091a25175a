"""Partitions that are added to an input: which cuts admit them, how they are merged, who proposes them."""

import asyncio
from collections import deque
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from restarts import check_restarts

from lockstep.log.memory import MemoryLog
from lockstep.order import growth
from lockstep.order.acceptance import Acceptance
from lockstep.order.algorithm1 import Algorithm1, Event, Heartbeat
from lockstep.order.generate import generate
from lockstep.order.growth import Growth, Trimmed, read_trimmed
from lockstep.order.inputs import Shard
from lockstep.order.liverobin import Admitted, AskGrown, Ends, Generator, Grown
from lockstep.order.merge import Merge
from lockstep.order.records import MAX_QUEUES, Cut, Queue, decode, encode
from lockstep.protocol.machine import Append, Deliver, Effects, LogRecord, Subscribe

STARTED: tuple[Queue, ...] = (("a", 0), ("b", 0))
GROWING = frozenset(STARTED)
A1, A2, B1 = ("a", 1), ("a", 2), ("b", 1)


def acceptance() -> Acceptance:
    return Acceptance(2, growing=GROWING)


def test_a_cut_without_added_queues_is_written_as_before() -> None:
    assert encode(Cut((1, 2), "g")) == b'{"is":"cut","ends":[1,2],"by":"g"}'
    assert decode(b'{"is":"cut","ends":[1,2],"by":"g"}') == Cut((1, 2), "g")
    added = Cut((1, 2, 0), "g", (A1,))
    assert decode(encode(added)) == added


@pytest.mark.parametrize(
    "added",
    ['[["a"]]', '[["a",-1]]', '[["a",2147483648]]', '[["",1]]', '[["a b",1]]', '[["a\\n",1]]', "null", "{}"],
)
def test_what_names_no_queue_is_no_cut(added: str) -> None:
    assert decode(f'{{"is":"cut","ends":[1,2,3],"added":{added}}}'.encode()) is None


def test_a_cut_that_goes_on_behind_the_list_adds_queues_though_nothing_moves() -> None:
    accepted = acceptance()
    assert accepted.accept(Cut((0, 0, 0), added=(A1,))) == Cut((0, 0, 0), added=(A1,))
    assert accepted.accept(Cut((0, 0, 0), added=(A1,))) is None, "the second time it says nothing new"
    assert accepted.accept(Cut((0, 0, 0, 4), added=(A1, B1))) == Cut((0, 0, 0, 4), added=(A1, B1))


def test_a_shorter_cut_leaves_the_ends_that_it_does_not_know() -> None:
    accepted = acceptance()
    accepted.accept(Cut((1, 1, 5, 6), added=(A1, B1)))
    assert accepted.accept(Cut((3, 0))) == Cut((3, 1, 5, 6), added=(A1, B1))
    assert accepted.accept(Cut((3, 1, 7), added=(A1,))) == Cut((3, 1, 7, 6), added=(A1, B1))


@pytest.mark.parametrize(
    "cut",
    [
        Cut((9, 9, 9), added=(B1,)),
        Cut((9, 9, 9, 9), added=(B1, A1)),
        Cut((9, 9, 9, 9), added=(A1, A1)),
        Cut((9, 9, 9, 9), added=(A1, ("a", 0))),
        Cut((9, 9, 9, 9), added=(A1, ("c", 1))),
        Cut((9, 9, 9), added=(A1, B1)),
        Cut((9, 9, 9)),
        Cut((9,) * (MAX_QUEUES + 1), added=(A1, *(("b", number) for number in range(1, MAX_QUEUES - 1)))),
    ],
)
def test_a_cut_that_contradicts_the_list_or_names_what_cannot_be_added_is_void(cut: Cut) -> None:
    accepted = acceptance()
    accepted.accept(Cut((0, 0, 0), added=(A1,)))
    before = accepted.copy()
    assert accepted.accept(cut) is None
    assert (accepted.ends, accepted.added) == (before.ends, before.added)


def test_a_shard_that_does_not_grow_takes_in_nothing() -> None:
    assert Acceptance(2).accept(Cut((1, 1, 1), added=(A1,))) is None


Story = list[tuple[list[int], int]]
"""For each cut: how much each queue has grown, and how many queues this cut adds."""


@st.composite
def stories(draw: st.DrawFn) -> Story:
    queues = draw(st.integers(1, 3))
    story = []
    for number in range(draw(st.integers(1, 10))):
        more = draw(st.integers(0, 2)) if number else 0
        queues += more
        story.append((draw(st.lists(st.integers(0, 5), min_size=queues, max_size=queues)), more))
    return story


def oracle(story: Story) -> list[tuple[int, int]]:
    """Algorithm 1, to whose queues others are added between two cycles."""
    algorithm = Algorithm1(len(story[0][0]))
    at = [0] * len(story[0][0])
    found: list[tuple[int, int]] = []
    for number, (growth_of, more) in enumerate(story, start=1):
        for _ in range(more):
            algorithm.active.add(len(algorithm.queues))
            algorithm.queues.append(deque())
            at.append(0)
        for queue, count in enumerate(growth_of):
            for _ in range(count):
                algorithm.queues[queue].append(Event(queue, at[queue]))
                at[queue] += 1
            algorithm.queues[queue].append(Heartbeat(number))
        found += [(item.queue, item.offset) for item in algorithm.run() if isinstance(item, Event)]
    return found


def cuts(story: Story) -> tuple[tuple[Queue, ...], list[Cut]]:
    """What the run began with, and the cuts of a story."""
    started = tuple((f"t{number}", 0) for number in range(len(story[0][0])))
    ends = [0] * len(started)
    added: tuple[Queue, ...] = ()
    made = []
    for growth_of, more in story:
        for _ in range(more):
            added += (("t0", len(added) + 1),)
            ends.append(0)
        ends = [end + count for end, count in zip(ends, growth_of, strict=True)]
        made.append(Cut(tuple(ends), added=added))
    return started, made


@given(stories(), st.integers(1, 7))
def test_the_merge_of_cuts_that_add_queues_is_algorithm_1_with_more_queues(story: Story, step: int) -> None:
    started, made = cuts(story)
    merge = Merge((0,) * len(started), frozenset(started))
    merged = []
    for offset, cut in enumerate(made):
        merge.follow(offset, cut)
        merged += merge.take(step)
    while taken := merge.take(step):
        merged += taken
    assert [(one.queue, one.offset) for one in merged] == oracle(story)
    assert [one.sn for one in merged] == list(range(len(merged)))


@given(stories(), st.data())
def test_a_replica_that_restarts_anywhere_goes_on_with_the_same_sequence(
    story: Story, data: st.DataObject
) -> None:
    started, made = cuts(story)
    check_restarts(made, len(started), len(story[-1][0]), data, frozenset(started))


class Topic:
    """The order topic by hand: every generator reads it at its own pace, from where it subscribed."""

    def __init__(self, rng: Random, *generators: Generator) -> None:
        self.rng = rng
        self.values: list[bytes] = []
        self.generators = list(generators)
        self.at: list[int | None] = [None] * len(generators)
        self.admitted: list[list[Queue]] = [[] for _ in generators]
        for number, one in enumerate(generators):
            self.take(number, one.on_start(()))

    def take(self, number: int, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Append(value=bytes(value), token=token):
                    self.values.append(value)
                    self.take(number, self.generators[number].on_appended(token, len(self.values) - 1))
                case Subscribe(offset=offset):
                    self.at[number] = offset
                case Deliver(item=AskGrown()):
                    self.tell(number)
                case Deliver(item=Admitted(queues=queues)):
                    self.admitted[number] += queues

    def tell(self, number: int, *queues: Queue) -> None:
        self.take(number, self.generators[number].on_command("", 0, Grown(queues)))

    def read(self, number: int, most: int = 1000) -> None:
        for _ in range(most):
            at = self.at[number]
            if at is None or at >= len(self.values):
                return
            self.at[number] = at + 1
            self.take(
                number, self.generators[number].on_record(LogRecord("order", 0, at, 0, None, self.values[at]))
            )

    def see(self, number: int, end: int) -> None:
        more = tuple((*queue, end) for queue in self.admitted[number])
        self.take(number, self.generators[number].on_command("", 0, Ends((end, end), more)))

    def accepted(self) -> Acceptance:
        accepted = acceptance()
        for value in self.values:
            accepted.accept(decode(value))
        return accepted


def generator(rank: int, **options: int) -> Generator:
    return Generator(f"generator-{rank}", "order", 0, (0, 0), rank=rank, growing=GROWING, **options)


def test_the_first_generator_reads_the_order_topic_before_it_names_a_queue() -> None:
    topic = Topic(Random(0), generator(0))
    topic.values = [encode(Cut((0, 0, 0), "another", (B1,)))]
    topic.see(0, 3)
    assert decode(topic.values[-1]) == Cut((3, 3), "generator-0"), (
        "it knows of no growth, and is right to go on"
    )
    topic.tell(0, A1, B1)
    assert topic.at[0] == 0
    topic.read(0)
    topic.see(0, 4)
    topic.read(0)
    topic.see(0, 5)
    assert topic.accepted().added == (B1, A1)
    assert topic.accepted().ends == (5, 5, 5, 5)


def test_a_proposal_that_does_not_count_holds_nothing_up() -> None:
    topic = Topic(Random(0), generator(0))
    topic.tell(0, A1)
    topic.values.append(encode(Cut((0, 0, 0), "another", (B1,))))  # it has not read this
    for end in range(1, 5):
        topic.see(0, end)
        assert topic.accepted().ends[:2] == (end, end)
    topic.read(0)
    topic.see(0, 5)
    topic.read(0)
    topic.see(0, 6)
    assert topic.accepted().added == (B1, A1)
    assert topic.accepted().ends == (6, 6, 6, 6)


def test_a_proposal_that_was_lost_is_made_again() -> None:
    one = generator(0)
    topic = Topic(Random(0), one)
    topic.tell(0, A1)
    (append,) = [effect for effect in one.on_command("", 0, Ends((0, 0))) if isinstance(effect, Append)]
    assert not [effect for effect in one.on_command("", 0, Ends((0, 0))) if isinstance(effect, Append)]
    one.on_append_failed(append.token, "timed out")
    topic.see(0, 0)
    assert topic.accepted().added == (A1,)


def test_a_generator_that_began_in_the_midst_does_not_believe_a_list_before_it_has_read_on_what_it_rests() -> (
    None
):
    first = encode(Cut((0, 0, 0), "x", (A1,)))
    void = encode(Cut((0, 0, 0), "y", (B1,)))
    topic = Topic(Random(0), generator(1, order_offset=1))
    topic.values = [first, void]
    topic.read(0)
    for end in (1, 2, 3, 4):
        topic.see(0, end)
    assert topic.admitted[0] == [A1]
    assert topic.accepted().ends == (2, 2, 2)


def test_the_list_is_known_at_the_place_to_which_the_topic_was_trimmed() -> None:
    one = generator(0)
    effects = tuple(one.on_command("", 0, Grown((A1, B1), 70, (A1,))))
    assert Subscribe("order", 0, 70) in effects
    assert Deliver(Admitted((A1,))) in effects
    (append,) = [effect for effect in one.on_command("", 0, Ends((3, 4))) if isinstance(effect, Append)][:1]
    assert append.token == Cut((0, 0, 0, 0), "generator-0", (A1, B1))


@pytest.mark.parametrize("seed", range(60))
def test_generators_that_find_different_partitions_at_once_come_to_agree(seed: int) -> None:
    rng = Random(seed)
    topic = Topic(rng, *(generator(rank) for rank in range(3)))
    found = [A1, A2, B1]
    end = 0
    for _ in range(60):
        number = rng.randrange(3)
        match rng.randrange(4):
            case 0:
                topic.tell(number, *rng.sample(found, rng.randint(1, 3)))
            case 1:
                topic.read(number, rng.randint(1, 4))
            case _:
                end += 1
                topic.see(number, end)
    for _ in range(12):
        for number in range(3):
            topic.tell(number, *found)
            topic.read(number)
            topic.see(number, end + 1)
    accepted = topic.accepted()
    assert sorted(accepted.added) == sorted(found)
    assert set(accepted.ends) == {end + 1}
    assert all(tuple(one) == accepted.added for one in topic.admitted), "and all know the list that counts"


def test_a_shard_says_which_of_its_topics_may_grow() -> None:
    shard = Shard.parse("a:0@17+,b:0")
    assert shard.growing == {("a", 0)}
    assert Shard.parse(str(shard)) == shard


def test_what_was_added_before_a_trimming_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "trimmed.json"
    assert read_trimmed(file) == {}
    file.write_bytes(msgspec.json.encode({0: Trimmed(70, (A1,))}))
    told: list[tuple[int, Grown]] = []

    async def run() -> None:
        async with MemoryLog() as log:
            for topic, partitions in {"a": 3, "b": 1, "order": 1}.items():
                await log.create_topic(topic, partitions=partitions)
            shards = [Shard.parse("a:0+,b:0+")]
            looking = Growth("g", log, "order", shards, tell=lambda *one: told.append(one), trimmed=file)
            watching = asyncio.ensure_future(looking.watch())
            while not told:
                await asyncio.sleep(0)
            watching.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert told == [(0, Grown((A1, A2), 70, (A1,)))]


def test_a_topic_that_another_shard_cannot_take_in_is_still_told_as_grown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run() -> str:
        async with MemoryLog() as log:
            for topic, partitions in {"a": 2, "rules": 2, "order": 1}.items():
                await log.create_topic(topic, partitions=partitions)
            shards = [Shard.parse("a:0+,rules:0")]
            watching = asyncio.ensure_future(Growth("g", log, "order", shards, tell=lambda *_: None).watch())
            while not (text := capsys.readouterr().out):
                await asyncio.sleep(0)
            watching.cancel()
            return text

    (said,) = [msgspec.json.decode(line) for line in asyncio.run(asyncio.wait_for(run(), 10)).splitlines()]
    assert (said["is"], said["topic"], said["unread"]) == ("grown", "rules", [1])


def test_generator_processes_admit_a_partition_that_is_added_while_they_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "GROWING_SECONDS", 0.02)

    async def run() -> Merge:
        async with MemoryLog() as log:
            for topic in ("a", "b", "order"):
                await log.create_topic(topic)
            shards = [Shard.parse("a:0+,b:0+")]
            made = [
                asyncio.ensure_future(
                    generate(log, "order", shards, name=f"g-{rank}", rank=rank, period=0.004)
                )
                for rank in range(2)
            ]
            await log.append("a", 0, b"")
            log.store.add_partitions_now("b", 2)
            await log.append("b", 1, b"")
            merge = Merge((0, 0), GROWING)
            at = 0
            while merge.sn < 2:
                for record in await log.read("order", 0, at):
                    merge.follow(record.offset, decode(record.value or b""))
                    at = record.offset + 1
                merge.take(10)
            for one in made:
                one.cancel()
            await asyncio.wait(made)
            return merge

    merge = asyncio.run(asyncio.wait_for(run(), 20))
    assert merge.accepted.added == (B1,)
    assert '"is":"admitted"' in capsys.readouterr().out
