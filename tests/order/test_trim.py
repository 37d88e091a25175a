"""Trimming: nothing goes that a site or a leader may still need."""

import asyncio
from random import Random

import msgspec
import pytest

from lockstep.log.errors import OffsetOutOfRange
from lockstep.log.memory import MemoryLog
from lockstep.order.merge import Input, Merge, Position
from lockstep.order.records import Cut, decode, encode
from lockstep.order.trim import SiteProgress, prefix
from lockstep.order.trimming import trim


def merged(cuts: int, *, taken: int) -> Merge:
    """A merge that has read so many cuts of two inputs each and taken so many inputs."""
    merge = Merge((0, 0))
    for number in range(cuts):
        merge.follow(number, Cut((number + 1, number + 1)))
    merge.take(taken)
    return merge


def test_nothing_is_trimmed_past_the_site_that_is_furthest_behind() -> None:
    ahead, behind = merged(10, taken=15).position(), merged(10, taken=5).position()
    found = prefix([SiteProgress("site-1", ahead), SiteProgress("site-2", behind)])
    assert found is not None
    assert found.position.order_offset == behind.order_offset == 2
    assert found.inputs == (2, 2)


def test_nothing_is_trimmed_while_a_site_catches_up() -> None:
    position = merged(10, taken=15).position()
    sites = [SiteProgress("site-1", position), SiteProgress("site-2", position, catching_up=True)]
    assert prefix(sites) is None


def test_nothing_is_trimmed_while_a_site_has_no_checkpoint() -> None:
    assert (
        prefix([SiteProgress("site-1", merged(10, taken=15).position()), SiteProgress("site-2", None)])
        is None
    )


def test_nothing_is_trimmed_when_no_site_is_known() -> None:
    assert prefix([]) is None


def test_a_position_within_a_record_keeps_that_record() -> None:
    position = merged(10, taken=5).position()
    assert position.done == 1
    found = prefix([SiteProgress("site-1", position)])
    assert found is not None
    assert found.position == msgspec.structs.replace(position, done=0)


def test_every_site_goes_on_with_the_same_sequence_after_any_trimming() -> None:
    """Sites at random places, trimmed again and again; each restarts from its checkpoint now and then."""
    asyncio.run(_random_trimmings(Random(7)))


async def _random_trimmings(rng: Random) -> None:
    async with MemoryLog() as log:
        await log.create_topic("order")
        ends = [0, 0]
        sites = [_Site() for _ in range(3)]
        for _ in range(300):
            ends[rng.randrange(2)] += rng.randrange(3)
            await log.append("order", 0, encode(Cut(tuple(ends))))
            site = rng.choice(sites)
            await site.advance(log, rng.randrange(8))
            if rng.random() < 0.3:
                site.checkpoint = site.merge.position()
            if rng.random() < 0.2:
                site.restart()
            progress = [SiteProgress(str(number), one.checkpoint) for number, one in enumerate(sites)]
            await trim(log, "order", 0, progress)
        assert (await log.first_offsets("order"))[0] > 100, "something was trimmed"
        for site in sites:
            await site.advance(log, 10_000)
        assert sites[0].taken == sites[1].taken == sites[2].taken
        assert [one.sn for one in sites[0].taken] == list(range(sum(ends)))


class _Site:
    def __init__(self) -> None:
        self.merge = Merge((0, 0))
        self.read = 0
        self.taken: list[Input] = []
        self.checkpoint: Position | None = None

    async def advance(self, log: MemoryLog, limit: int) -> None:
        for record in await log.read("order", 0, self.read, wait=False):
            self.merge.follow(record.offset, decode(record.value or b""))
            self.read = record.offset + 1
        self.taken += self.merge.take(limit)

    def restart(self) -> None:
        if self.checkpoint is None:
            self.__init__()  # type: ignore[misc]
        else:
            self.merge, self.read = Merge.at(self.checkpoint), self.checkpoint.order_offset
            del self.taken[self.checkpoint.upcoming :]


def test_the_position_is_remembered_before_anything_is_deleted() -> None:
    async def run() -> None:
        async with MemoryLog() as log:
            await log.create_topic("order")
            for number in range(10):
                await log.append("order", 0, encode(Cut((number + 1, number + 1))))
            position = merged(10, taken=11).position()
            remembered: list[tuple[int, int]] = []

            async def remember(kept: Position) -> None:
                remembered.append((kept.order_offset, (await log.first_offsets("order"))[0]))

            await trim(log, "order", 0, [SiteProgress("site-1", position)], remember=remember)
            assert remembered == [(5, 0)]
            assert (await log.first_offsets("order"))[0] == 5
            with pytest.raises(OffsetOutOfRange):
                await log.read("order", 0, 4, wait=False)

    asyncio.run(run())


def test_stage_topics_are_trimmed_with_the_order_and_users_topics_never() -> None:
    async def run() -> None:
        async with MemoryLog() as log:
            for topic in ("order", "stage", "users"):
                await log.create_topic(topic)
            for number in range(10):
                await log.append("order", 0, encode(Cut((number + 1, number + 1))))
                await log.append("stage", 0, b"")
                await log.append("users", 0, b"")
            await trim(
                log,
                "order",
                0,
                [SiteProgress("site-1", merged(10, taken=7).position())],
                queues=(("users", 0), ("stage", 0)),
                owned={"stage"},
            )
            assert (await log.first_offsets("stage"))[0] == 3
            assert (await log.first_offsets("users"))[0] == 0

    asyncio.run(run())
