"""The log as the rest of Lockstep sees it: topics of partitions of records, each with an offset.

`lockstep.log.kafka.KafkaLog` is the real one, `lockstep.log.memory.MemoryLog` its twin; one suite of tests
(tests/log/contract.py) holds for both. What a log promises:

1. `append` returns the offsets once the records are as safe as the topic's settings make them. Appends that
   were begun in some order to one partition are in the log in that order, each exactly once, also when the
   broker goes away and comes back meanwhile. A batch is not a transaction: after `Unavailable` any prefix
   of it may be there.
2. A reader hands over each record of a partition once, in the order of offsets, from the offset that it was
   given. Offsets may have holes (transaction markers, compaction); `position` moves over them.
3. What cannot be done is told by an error of `lockstep.log.errors`; nothing is skipped or repeated instead.
4. Memory is bounded: an append waits when too much is on its way, a reader stops fetching when its
   records are not taken.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct

from lockstep.errors import LockstepError
from lockstep.protocol.machine import LogRecord

DEFAULT_LIMIT = 1_000
"""Records that one call hands over at most, unless told otherwise."""


class Entry(Struct, frozen=True):
    """What to append. Without a timestamp (milliseconds, above 0) the record gets the time of the append."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None

    def size(self) -> int:
        """Bytes of the record in the log, rounded up: payload and Kafka's framing."""
        headers = sum(len(name) + len(value) + 8 for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers + RECORD_OVERHEAD


RECORD_OVERHEAD = 100
"""Framing of a record that is a batch of its own (61 bytes a batch, and varints), rounded up."""


class Log(ABC):
    """A log that is open. Close it with `close`, or use it as an `async with` context."""

    @abstractmethod
    async def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Return when the topic can be used. Raises `TopicExists`."""

    @abstractmethod
    async def delete_topic(self, topic: str) -> None:
        """Raises `UnknownTopic`."""

    @abstractmethod
    async def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises `UnknownTopic`."""

    @abstractmethod
    async def append_batch(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        """Append in this order; the offset of each."""

    async def ready(self, topic: str) -> None:
        """Connect for appends to a topic, so that the first one takes no longer than others. `UnknownTopic`."""
        await self.partitions(topic)

    async def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
        timestamp: int | None = None,
    ) -> int:
        """Append one record; its offset."""
        return (await self.append_batch(topic, partition, (Entry(value, key, headers, timestamp),)))[0]

    @abstractmethod
    async def read(
        self, topic: str, partition: int, offset: int, *, limit: int = DEFAULT_LIMIT, wait: bool = True
    ) -> list[LogRecord]:
        """The next records from `offset` on, at most `limit`, as soon as there is one.

        With `wait=False`: what is there now, which may be nothing. To follow many partitions or to read
        much, use a `reader`.
        """

    @abstractmethod
    async def first_offsets(self, topic: str) -> dict[int, int]:
        """For each partition, the offset of the first record that retention has left (or the end)."""

    @abstractmethod
    async def end_offsets(self, topic: str) -> dict[int, int]:
        """For each partition, the offset that the next record will get."""

    def ends(
        self, places: Sequence[tuple[str, int]], *, seconds: float = 1.0
    ) -> "asyncio.Future[dict[tuple[str, int], int]]":
        """Where these (topic, partition)s end, as far as that can be said within about `seconds`.

        For those who ask all the time: no error and no second try; a partition that gave no answer is left out.
        """
        return asyncio.ensure_future(self._ends(places))

    async def _ends(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for topic in {topic for topic, _ in places}:
            with contextlib.suppress(LockstepError):
                for partition, end in (await self.end_offsets(topic)).items():
                    if (topic, partition) in places:
                        found[topic, partition] = end
        return found

    @abstractmethod
    async def trim(self, topic: str, partition: int, before: int) -> None:
        """Remove the records before an offset, as retention does."""

    @abstractmethod
    def reader(self, *, capacity: int = 20_000) -> "Reader":
        """A reader without subscriptions that holds about `capacity` records at most."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for appends that are on their way, then let go of everything."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Reader(ABC):
    """Follows partitions as they grow. For one task at a time."""

    @abstractmethod
    async def subscribe(self, topic: str, partition: int, offset: int) -> None:
        """Follow a partition from `offset` on; a second time, move there."""

    @abstractmethod
    async def unsubscribe(self, topic: str, partition: int) -> None:
        """Hand over nothing more of a partition."""

    @abstractmethod
    async def next(self, limit: int = DEFAULT_LIMIT) -> list[LogRecord]:
        """Wait for records and hand over at most `limit`. Empty only when a position moved over a hole.

        An error that concerns one partition is raised after all its records before it were handed over, and
        ends that subscription; the others go on.
        """

    @abstractmethod
    def position(self, topic: str, partition: int) -> int:
        """Every record before it was handed over or does not exist."""

    @abstractmethod
    def pause(self, topic: str, partition: int) -> None:
        """Fetch no more of a partition; what the reader holds of it already still comes."""

    @abstractmethod
    def resume(self, topic: str, partition: int) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aiter__(self) -> AsyncIterator[LogRecord]:
        while True:
            for record in await self.next():
                yield record

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
