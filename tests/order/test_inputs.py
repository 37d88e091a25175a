"""Which inputs a shard has, and how a process asks where they end when some of them do not answer."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from lockstep.errors import UsageError
from lockstep.log.memory import MemoryLog
from lockstep.order import inputs
from lockstep.order.growth import Growth, unread_partitions
from lockstep.order.inputs import EndOffsets, Shard
from lockstep.order.liverobin import Ends

Place = tuple[str, int]


def test_a_shard_is_written_as_its_queues_with_the_offsets_where_the_run_began() -> None:
    shard = Shard.parse("in-a:0@17,in-b:3")
    assert shard == Shard((("in-a", 0), ("in-b", 3)), (17, 0))
    assert Shard.parse(str(shard)) == shard


@pytest.mark.parametrize(
    "text", ["", "in", "in:", "in:x", ":0", "in:0@", "in:0@-1", "in:0@x", "in:0,,b:0", "in:\u0663"]
)
def test_what_names_no_input_is_refused_with_the_part_that_is_wrong(text: str) -> None:
    with pytest.raises(UsageError, match="names no input"):
        Shard.parse(text)


def test_an_input_may_stand_in_a_shard_once_only() -> None:
    with pytest.raises(UsageError, match="names an input twice"):
        Shard.parse("a:0,b:0,a:0@5")


class Cluster(MemoryLog):
    """A log of which some partitions do not answer: their broker is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[Place] = set()
        self.given_up = asyncio.Event()
        self.questions = 0

    async def _ends(self, places: Sequence[Place]) -> dict[Place, int]:
        self.questions += 1
        if self.dead.intersection(places):
            await self.given_up.wait()  # Kafka's client answers when its last broker has
        found = await super()._ends(places)
        return {place: end for place, end in found.items() if place not in self.dead}


async def look(ends: EndOffsets, shard: Shard) -> Ends:
    told = asyncio.Event()
    ends.look(told.set)
    await told.wait()
    return ends.known(shard)


def test_shards_that_ask_at_the_same_time_share_one_question() -> None:
    async def run() -> None:
        async with Cluster() as log:
            for topic in ("a", "b"):
                await log.create_topic(topic, partitions=2)
            await log.append("a", 1, b"")
            shards = [Shard.parse("a:0,b:0"), Shard.parse("a:1,b:1")]
            ends = EndOffsets(log, shards, fresh=60)
            assert await asyncio.gather(*(look(ends, shard) for shard in shards)) == [
                Ends((0, 0)),
                Ends((1, 0)),
            ]
            assert await look(ends, shards[0]) == Ends((0, 0))
            assert log.questions == 1

    asyncio.run(run())


def test_a_dead_broker_does_not_hold_up_the_answers_of_the_others() -> None:
    async def run() -> None:
        async with Cluster() as log:
            for topic in ("a", "b"):
                await log.create_topic(topic)
            shard = Shard.parse("a:0,b:0")
            ends = EndOffsets(log, [shard], fresh=0)
            log.dead = {("b", 0)}
            await log.append("a", 0, b"")
            first = asyncio.ensure_future(look(ends, shard))
            await asyncio.sleep(0.02)
            assert not first.done(), "the first one waits for the dead"
            log.given_up.set()
            assert await first == Ends((1, None))
            log.given_up.clear()  # nobody gives up from here on: who waits for the dead waits for ever
            async with asyncio.timeout(10):
                for count in range(2, 12):
                    await log.append("a", 0, b"")
                    while await look(ends, shard) != Ends((count, None)):
                        pass
            log.dead = set()
            log.given_up.set()
            async with asyncio.timeout(10):
                while await look(ends, shard) != Ends((11, 0)):
                    pass
            log.questions = 0
            await look(ends, shard)
            assert log.questions == 1, "one question for all again"

    asyncio.run(run())


def test_partitions_that_no_shard_reads_are_named() -> None:
    shards = [Shard.parse("a:0,rules:0"), Shard.parse("a:1,rules:0")]
    assert unread_partitions("a", 2, shards) == []
    assert unread_partitions("a", 4, shards) == [2, 3]
    assert unread_partitions("rules", 1, shards) == []


def test_a_topic_that_grows_is_reported_once_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with MemoryLog() as log:
            await log.create_topic("a", partitions=2)
            reporting = asyncio.ensure_future(
                Growth("generator-0", log, "order", [Shard.parse("a:0")]).watch()
            )
            async with asyncio.timeout(10):
                while not (text := capsys.readouterr().out):
                    await asyncio.sleep(0)
            reporting.cancel()
            assert msgspec.json.decode(text)["unread"] == [1]
            assert "begin a new run" in text

    asyncio.run(run())


def test_inputs_that_rest_are_watched_and_the_first_record_wakes_everybody() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inputs, "CALM", 0.02)
        async with Cluster() as log:
            for topic in ("a", "b"):
                await log.create_topic(topic)
            await log.append("a", 0, b"")
            shard = Shard.parse("a:0,b:0")
            ends = EndOffsets(log, [shard], fresh=0)
            woken: list[Ends] = []
            ends.on_wake(lambda: woken.append(ends.known(shard)))
            watching = asyncio.ensure_future(ends.watch())
            async with asyncio.timeout(10):
                for count in (1, 2, 3):
                    before = log.questions
                    while not ends.rests:
                        await look(ends, shard)
                    asked = log.questions
                    assert asked > before, "looks go on until it is calm"
                    await log.append("b", 0, b"")
                    while len(woken) < count:
                        await asyncio.sleep(0)
                    assert log.questions == asked, "nobody asked"
                    assert not ends.rests
            watching.cancel()
            assert woken == [Ends((1, 1)), Ends((1, 2)), Ends((1, 3))]

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(monkeypatch))


def test_an_input_that_has_shrunk_is_told_once_and_its_end_does_not_go_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with Cluster() as log:
            await log.create_topic("a")
            for _ in range(5):
                await log.append("a", 0, b"")
            shard = Shard.parse("a:0")
            ends = EndOffsets(log, [shard], fresh=-1)
            assert await look(ends, shard) == Ends((5,))
            await log.delete_topic("a")
            await log.create_topic("a")
            for _ in range(300):
                assert await look(ends, shard) == Ends((5,))

    asyncio.run(run())
    assert [record.getMessage()[:36] for record in caplog.records] == ["a/0 ends at 0 and ended at 5 before:"]
