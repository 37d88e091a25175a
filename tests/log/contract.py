"""What every log promises, as tests: a subclass says which log, and gets them all.

Each test runs in an event loop of its own with an overall deadline, on topics of its own.
"""

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from lockstep.errors import UsageError
from lockstep.log.errors import (
    LogClosed,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicDeleted,
    TopicExists,
    TopicRecreated,
    UnknownPartition,
    UnknownTopic,
)
from lockstep.log.interface import Entry, Log, Reader
from lockstep.protocol.machine import LogRecord

DEADLINE = 60.0

_Test = Callable[["LogContract", Log, str], Awaitable[None]]


def on_a_log(test: _Test) -> Callable[["LogContract"], None]:
    """Run an async test with an open log and the name of a topic that nobody else uses."""

    @functools.wraps(test)
    def run(self: "LogContract") -> None:
        async def with_log() -> None:
            async with asyncio.timeout(DEADLINE), self.open_log() as log:
                await test(self, log, f"contract-{uuid.uuid4().hex[:12]}")

        asyncio.run(with_log())

    del run.__wrapped__  # pytest would read the arguments of the inner function as fixtures
    return run


def entries(*values: str) -> list[Entry]:
    return [Entry(value.encode()) for value in values]


def values(records: list[LogRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


async def take(reader: Reader, count: int, limit: int = 1000) -> list[LogRecord]:
    taken: list[LogRecord] = []
    while len(taken) < count:
        taken += await reader.next(min(limit, count - len(taken)))
    return taken


class LogContract:
    def open_log(self) -> AbstractAsyncContextManager[Log]:
        """A log on the store that all logs of this test class share."""
        raise AssertionError("a subclass says which log")

    @on_a_log
    async def test_a_record_is_read_as_it_was_appended(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        headers = (("a", b"1"), ("b", b""), ("a", b"2"))
        await log.append(topic, 0, b"value", key=b"key", headers=headers, timestamp=1234)
        await log.append(topic, 0, None, key=b"key")
        await log.append(topic, 0, b"")
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            first, second, third = await take(reader, 3)
        assert first == LogRecord(topic, 0, 0, 1234, b"key", b"value", headers)
        assert (second.offset, second.key, second.value, second.headers) == (1, b"key", None, ())
        assert second.timestamp > 0
        assert (third.offset, third.key, third.value) == (2, None, b"")

    @on_a_log
    async def test_offsets_of_a_partition_count_up_from_zero(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, partitions=3)
        assert await log.partitions(topic) == 3
        assert await log.append_batch(topic, 1, entries("a", "b")) == [0, 1]
        assert await log.append(topic, 1, b"c") == 2
        assert await log.append_batch(topic, 1, []) == []
        assert await log.end_offsets(topic) == {0: 0, 1: 3, 2: 0}
        assert await log.first_offsets(topic) == {0: 0, 1: 0, 2: 0}

    @on_a_log
    async def test_appends_begun_in_an_order_are_in_the_log_in_that_order(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        appends = [asyncio.create_task(log.append(topic, 0, str(i).encode())) for i in range(2_000)]
        assert await asyncio.gather(*appends) == list(range(2_000))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            assert values(await take(reader, 2_000)) == [str(i) for i in range(2_000)]

    @on_a_log
    async def test_a_read_starts_at_its_offset_and_keeps_its_limit(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abcdef"))
        assert values(await log.read(topic, 0, 2, limit=3)) == ["c", "d", "e"]
        assert values(await log.read(topic, 0, 5, limit=3)) == ["f"]
        assert values(await log.read(topic, 0, 0, limit=1)) == ["a"]
        assert await log.read(topic, 0, 6, wait=False) == []

    @on_a_log
    async def test_a_read_at_the_end_waits_for_the_next_record(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append(topic, 0, b"before")
        waiting = asyncio.create_task(log.read(topic, 0, 1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        await log.append(topic, 0, b"after")
        assert values(await waiting) == ["after"]

    @on_a_log
    async def test_a_reader_follows_several_partitions_each_in_order(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, partitions=2)
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            await log.append_batch(topic, 0, entries(*(f"x{i}" for i in range(500))))
            await log.append_batch(topic, 1, entries(*(f"y{i}" for i in range(500))))
            await reader.subscribe(topic, 1, 1)
            taken = await take(reader, 999, limit=70)
            assert values([r for r in taken if r.partition == 0]) == [f"x{i}" for i in range(500)]
            assert values([r for r in taken if r.partition == 1]) == [f"y{i}" for i in range(1, 500)]
            assert (reader.position(topic, 0), reader.position(topic, 1)) == (500, 500)

    @on_a_log
    async def test_a_reader_sees_what_comes_later(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            for text in ("a", "b", "c"):
                waiting = asyncio.create_task(take(reader, 1))
                await asyncio.sleep(0)
                await log.append(topic, 0, text.encode())
                assert values(await waiting) == [text]

    @on_a_log
    async def test_a_moved_subscription_starts_over_at_its_new_offset(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*(str(i) for i in range(100))))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            assert values(await take(reader, 10)) == [str(i) for i in range(10)]
            await reader.subscribe(topic, 0, 3)
            assert reader.position(topic, 0) == 3
            assert values(await take(reader, 97)) == [str(i) for i in range(3, 100)]

    @on_a_log
    async def test_an_ended_subscription_hands_over_nothing_more(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, partitions=2)
        await log.append_batch(topic, 0, entries(*"abc"))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            await take(reader, 1)
            await reader.unsubscribe(topic, 0)
            await reader.subscribe(topic, 1, 0)
            await log.append(topic, 1, b"other")
            assert values(await take(reader, 1)) == ["other"]

    @on_a_log
    async def test_a_paused_partition_waits_until_it_is_resumed(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, partitions=2)
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            await reader.subscribe(topic, 1, 0)
            await log.append(topic, 0, b"first")
            assert values(await take(reader, 1)) == ["first"]
            reader.pause(topic, 0)
            await log.append(topic, 1, b"lets the pause take hold")
            await take(reader, 1)
            await log.append(topic, 0, b"held back")
            for i in range(20):
                await log.append(topic, 1, str(i).encode())
            assert values(await take(reader, 20)) == [str(i) for i in range(20)]
            reader.resume(topic, 0)
            assert values(await take(reader, 1)) == ["held back"]

    @on_a_log
    async def test_a_slow_taker_gets_everything_once(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*(str(i) for i in range(3_000))))
        async with log.reader(capacity=100) as reader:
            await reader.subscribe(topic, 0, 0)
            taken: list[str] = []
            while len(taken) < 3_000:
                taken += values(await reader.next(50))
                await asyncio.sleep(0.001)
            assert taken == [str(i) for i in range(3_000)]

    @on_a_log
    async def test_a_reader_can_be_iterated_over(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abc"))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            seen = []
            async for record in reader:
                seen.append(record.offset)
                if len(seen) == 3:
                    break
            assert seen == [0, 1, 2]

    @on_a_log
    async def test_two_logs_share_what_is_stored(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        async with self.open_log() as other:
            await other.append(topic, 0, b"from the other")
        assert values(await log.read(topic, 0, 0)) == ["from the other"]

    @on_a_log
    async def test_a_topic_is_created_once(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        with pytest.raises(TopicExists):
            await log.create_topic(topic)

    @on_a_log
    async def test_an_unknown_topic_is_refused(self, log: Log, topic: str) -> None:
        async with log.reader() as reader:
            for attempt in (
                log.append(topic, 0, b""),
                log.read(topic, 0, 0),
                log.partitions(topic),
                log.end_offsets(topic),
                log.first_offsets(topic),
                log.delete_topic(topic),
                reader.subscribe(topic, 0, 0),
            ):
                with pytest.raises(UnknownTopic):
                    await attempt

    @on_a_log
    async def test_an_unknown_partition_is_refused(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, partitions=2)
        async with log.reader() as reader:
            for attempt in (
                log.append(topic, 2, b""),
                log.append(topic, -1, b""),
                log.read(topic, 2, 0),
                log.trim(topic, 2, 0),
                reader.subscribe(topic, 2, 0),
            ):
                with pytest.raises(UnknownPartition) as caught:
                    await attempt
                assert caught.value.partitions == 2

    @on_a_log
    async def test_an_offset_out_of_retention_names_the_first_that_is_left(
        self, log: Log, topic: str
    ) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abcdef"))
        await log.trim(topic, 0, 4)
        assert await log.first_offsets(topic) == {0: 4}
        assert await log.end_offsets(topic) == {0: 6}
        with pytest.raises(OffsetOutOfRange) as caught:
            await log.read(topic, 0, 2)
        assert (caught.value.offset, caught.value.first, caught.value.end) == (2, 4, 6)
        assert values(await log.read(topic, 0, caught.value.first)) == ["e", "f"]

    @on_a_log
    async def test_an_offset_after_the_end_is_refused(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abc"))
        with pytest.raises(OffsetOutOfRange) as caught:
            await log.read(topic, 0, 4)
        assert (caught.value.first, caught.value.end) == (0, 3)
        with pytest.raises(OffsetOutOfRange):
            await log.trim(topic, 0, 4)
        async with log.reader() as reader:
            with pytest.raises(UsageError):
                await reader.subscribe(topic, 0, -1)

    @on_a_log
    async def test_a_reader_overtaken_by_retention_is_told(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, partitions=2)
        await log.append_batch(topic, 0, entries(*"abcdef"))
        await log.trim(topic, 0, 3)
        await log.append(topic, 1, b"other")
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            with pytest.raises(OffsetOutOfRange) as caught:
                await reader.next()
            assert caught.value.first == 3
            await reader.subscribe(topic, 1, 0)
            assert values(await take(reader, 1)) == ["other"], "the reader goes on with its other partitions"

    @on_a_log
    async def test_an_oversized_record_is_refused_and_its_batch_with_it(self, log: Log, topic: str) -> None:
        await log.create_topic(topic, config={"max.message.bytes": "10000"})
        with pytest.raises(RecordTooLarge) as caught:
            await log.append_batch(topic, 0, [Entry(b"small"), Entry(bytes(10_000)), Entry(b"small")])
        assert caught.value.limit == 10_000
        assert caught.value.size > 10_000
        many = [Entry(bytes(5_000)) for _ in range(10)]
        assert await log.append_batch(topic, 0, many) == list(range(10)), (
            "together too large, but one by one not"
        )

    @on_a_log
    async def test_a_deleted_topic_is_told_from_an_unknown_one(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abc"))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            assert values(await take(reader, 3)) == ["a", "b", "c"]
            async with self.open_log() as other:
                await other.delete_topic(topic)
            with pytest.raises(TopicDeleted):
                await reader.next()
        with pytest.raises(TopicDeleted):
            await log.append(topic, 0, b"d")
        with pytest.raises(TopicDeleted):
            await log.read(topic, 0, 0)

    @on_a_log
    async def test_a_recreated_topic_is_never_taken_for_the_old_one(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abc"))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            assert values(await take(reader, 3)) == ["a", "b", "c"]
            async with self.open_log() as other:
                await other.delete_topic(topic)
                await other.create_topic(topic)
                await other.append_batch(topic, 0, entries(*"ABCDEFGH"))  # as long as before, and longer
            with pytest.raises(TopicRecreated):
                await reader.next()
        with pytest.raises(TopicRecreated):
            await log.read(topic, 0, 3)

    @on_a_log
    async def test_a_reader_of_the_old_topic_is_told_even_when_its_own_log_recreates_it(
        self, log: Log, topic: str
    ) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abc"))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            assert values(await take(reader, 3)) == ["a", "b", "c"]
            await log.delete_topic(topic)
            await log.create_topic(topic)
            assert await log.append_batch(topic, 0, entries(*"ABCDEFGH")) == list(range(8))
            with pytest.raises(TopicRecreated):
                await reader.next()
            await reader.subscribe(topic, 0, 0)
            assert values(await take(reader, 8)) == list("ABCDEFGH")

    @on_a_log
    async def test_a_shrunken_topic_is_told(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        await log.append_batch(topic, 0, entries(*"abc"))
        async with log.reader() as reader:
            await reader.subscribe(topic, 0, 0)
            await take(reader, 3)
            async with self.open_log() as other:
                await other.delete_topic(topic)
                await other.create_topic(topic)
                await other.append(topic, 0, b"A")
            with pytest.raises(TopicRecreated):
                await reader.next()
        with pytest.raises(TopicRecreated):
            await log.append_batch(topic, 0, entries("d"))

    @on_a_log
    async def test_a_closed_log_and_reader_say_so(self, log: Log, topic: str) -> None:
        await log.create_topic(topic)
        reader = log.reader()
        await reader.subscribe(topic, 0, 0)
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        await reader.close()
        with pytest.raises(LogClosed):
            await waiting
        await log.close()
        with pytest.raises(LogClosed):
            await log.append(topic, 0, b"late")
        await log.close()
