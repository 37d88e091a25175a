"""The log's in-memory twin.

`MemoryStore` is the synchronous core, for the simulator: no asyncio, no clock, no randomness; what it does
depends on its calls alone. Its faults are switched on and off by whoever holds it: a partition that is not
available, a trimmed prefix, a deleted topic. `MemoryLog` puts the `Log` interface over a store; several logs
may share one, as processes share a Kafka.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lockstep.errors import UsageError
from lockstep.log.errors import (
    LogClosed,
    LogError,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicDeleted,
    TopicExists,
    TopicRecreated,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lockstep.log.interface import DEFAULT_LIMIT, Entry, Log, Reader
from lockstep.protocol.machine import LogRecord

DEFAULT_MAX_BYTES = 1_000_000
_Place = tuple[str, int]
_Result = TypeVar("_Result")


class MemoryStore:
    """Topics in memory. `clock` gives the timestamp in ms of entries that have none (default: always 1)."""

    def __init__(self, clock: Callable[[], int] = lambda: 1) -> None:
        self._clock = clock
        self._topics: dict[str, _Topic] = {}
        self._created = 0
        self._watchers: list[Callable[[], None]] = []

    def create_topic_now(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        if topic in self._topics:
            raise TopicExists(topic)
        if partitions < 1:
            raise LogError(f"topic {topic} cannot have {partitions} partitions", hint="at least 1")
        self._created += 1
        limit = int((config or {}).get("max.message.bytes", DEFAULT_MAX_BYTES))
        self._topics[topic] = _Topic(self._created, limit, [_Partition() for _ in range(partitions)])

    def delete_topic_now(self, topic: str) -> None:
        self._topic(topic)
        del self._topics[topic]
        self._changed()

    def add_partitions_now(self, topic: str, total: int) -> None:
        """As Kafka does on request: partitions can be added, never taken away."""
        found = self._topic(topic).partitions
        found += [_Partition() for _ in range(total - len(found))]

    def partitions_now(self, topic: str) -> int:
        return len(self._topic(topic).partitions)

    def identity_now(self, topic: str) -> int | None:
        """Tells a topic from a later one of the same name; None when there is none."""
        found = self._topics.get(topic)
        return found.identity if found is not None else None

    def append_now(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        """All of them or, with an error, none."""
        held = self._partition(topic, partition)
        limit = self._topics[topic].max_bytes
        for entry in entries:
            if entry.size() > limit:
                raise RecordTooLarge(topic, partition, entry.size(), limit)
        start = held.end
        for offset, entry in enumerate(entries, start):
            stamp = entry.timestamp if entry.timestamp is not None else self._clock()
            held.records.append(
                LogRecord(topic, partition, offset, stamp, entry.key, entry.value, entry.headers)
            )
        if entries:
            self._changed()
        return list(range(start, held.end))

    def read_now(
        self, topic: str, partition: int, offset: int, limit: int = DEFAULT_LIMIT
    ) -> list[LogRecord]:
        held = self._partition(topic, partition)
        if not held.first <= offset <= held.end:
            raise OffsetOutOfRange(topic, partition, offset, held.first, held.end)
        start = offset - held.first
        return held.records[start : start + limit]

    def first_offset_now(self, topic: str, partition: int) -> int:
        return self._partition(topic, partition).first

    def end_offset_now(self, topic: str, partition: int) -> int:
        return self._partition(topic, partition).end

    def trim_now(self, topic: str, partition: int, before: int) -> None:
        held = self._partition(topic, partition)
        if before > held.end:
            raise OffsetOutOfRange(topic, partition, before, held.first, held.end)
        if before > held.first:
            del held.records[: before - held.first]
            held.first = before
            self._changed()

    def set_available(self, topic: str, partition: int, available: bool) -> None:
        """While a partition is not available, every use of it raises `Unavailable`."""
        self._any_partition(topic, partition).available = available
        self._changed()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change; returns what ends this."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def _changed(self) -> None:
        for changed in tuple(self._watchers):
            changed()

    def _topic(self, topic: str) -> "_Topic":
        found = self._topics.get(topic)
        if found is None:
            raise UnknownTopic(topic)
        return found

    def _any_partition(self, topic: str, partition: int) -> "_Partition":
        partitions = self._topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownPartition(topic, partition, len(partitions))
        return partitions[partition]

    def _partition(self, topic: str, partition: int) -> "_Partition":
        found = self._any_partition(topic, partition)
        if not found.available:
            raise Unavailable(f"{topic}/{partition} has no leader")
        return found


class MemoryLog(Log):
    """The `Log` interface over a store. Like Kafka's clients it waits while a partition is not available."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(lambda: time.time_ns() // 1_000_000)
        self._identities: dict[str, int] = {}
        self._closed = asyncio.Event()
        self._wakers: set[_Waker] = set()

    async def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        self.store.create_topic_now(topic, partitions=partitions, config=config)
        self._identities.pop(topic, None)  # who creates a topic means the new one from now on

    async def delete_topic(self, topic: str) -> None:
        self.store.delete_topic_now(topic)

    async def partitions(self, topic: str) -> int:
        return self.store.partitions_now(topic)

    async def append_batch(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        return await self._patiently(topic, lambda: self.store.append_now(topic, partition, entries))

    async def read(
        self, topic: str, partition: int, offset: int, *, limit: int = DEFAULT_LIMIT, wait: bool = True
    ) -> list[LogRecord]:
        def attempt() -> list[LogRecord]:
            records = self.store.read_now(topic, partition, offset, limit)
            if wait and not records:
                raise Unavailable("nothing there yet")
            return records

        return await self._patiently(topic, attempt)

    async def first_offsets(self, topic: str) -> dict[int, int]:
        parts = range(self.store.partitions_now(topic))
        return {partition: self.store.first_offset_now(topic, partition) for partition in parts}

    async def end_offsets(self, topic: str) -> dict[int, int]:
        parts = range(self.store.partitions_now(topic))
        return {partition: self.store.end_offset_now(topic, partition) for partition in parts}

    async def trim(self, topic: str, partition: int, before: int) -> None:
        self.store.trim_now(topic, partition, before)

    def reader(self, *, capacity: int = 20_000) -> "MemoryReader":
        return MemoryReader(self)

    async def close(self) -> None:
        self._closed.set()
        for waker in tuple(self._wakers):
            waker.wake()

    def require_same(self, topic: str, identity: int | None = None) -> int:
        """The topic's identity. Raise if it is not the one that this log first met (or that is given)."""
        now = self.store.identity_now(topic)
        known = identity or self._identities.get(topic)
        if known is None:
            if now is None:
                raise UnknownTopic(topic)
            self._identities[topic] = known = now
        elif now is None:
            raise TopicDeleted(topic)
        elif now != known:
            raise TopicRecreated(topic)
        return known

    def require_open(self) -> None:
        if self._closed.is_set():
            raise LogClosed

    def waker(self) -> "_Waker":
        return _Waker(self.store, self._wakers)

    async def _patiently(self, topic: str, attempt: Callable[[], _Result]) -> _Result:
        waker = self.waker()
        try:
            while True:
                self.require_open()
                self.require_same(topic)
                try:
                    return attempt()
                except Unavailable:
                    await waker.wait()
        finally:
            waker.stop()


class MemoryReader(Reader):
    """Reads from the store only what is asked for, so that it holds nothing."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._positions: dict[_Place, int] = {}
        self._identities: dict[str, int] = {}
        self._paused: set[_Place] = set()
        self._waker = log.waker()
        self._closed = False

    async def subscribe(self, topic: str, partition: int, offset: int) -> None:
        if offset < 0:
            raise UsageError(f"{offset} is not an offset", hint="ask for first_offsets or end_offsets")
        self._identities[topic] = self._log.require_same(topic)
        partitions = self._log.store.partitions_now(topic)
        if not 0 <= partition < partitions:
            raise UnknownPartition(topic, partition, partitions)
        self._positions[topic, partition] = offset
        self._waker.wake()

    async def unsubscribe(self, topic: str, partition: int) -> None:
        self._positions.pop((topic, partition), None)
        self._paused.discard((topic, partition))

    async def next(self, limit: int = DEFAULT_LIMIT) -> list[LogRecord]:
        while True:
            self._log.require_open()
            if self._closed:
                raise LogClosed
            records: list[LogRecord] = []
            for place in list(self._positions):
                if place not in self._paused and len(records) < limit:
                    try:
                        records += self._take(place, limit - len(records))
                    except Unavailable:
                        continue
                    except LogError:
                        if records:  # the error comes again next time
                            break
                        del self._positions[place]
                        raise
            if records:
                # Whoever was served first is last next time: no partition starves another.
                for place in dict.fromkeys((record.topic, record.partition) for record in records):
                    self._positions[place] = self._positions.pop(place)
                return records
            await self._waker.wait()

    def position(self, topic: str, partition: int) -> int:
        return self._positions[topic, partition]

    def pause(self, topic: str, partition: int) -> None:
        self._paused.add((topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        self._paused.discard((topic, partition))
        self._waker.wake()

    async def close(self) -> None:
        self._closed = True
        self._waker.wake()
        self._waker.stop()

    def _take(self, place: _Place, limit: int) -> list[LogRecord]:
        self._log.require_same(place[0], self._identities[place[0]])
        records = self._log.store.read_now(*place, self._positions[place], limit)
        self._positions[place] += len(records)
        return records


class _Topic:
    def __init__(self, identity: int, max_bytes: int, partitions: "list[_Partition]") -> None:
        self.identity = identity
        self.max_bytes = max_bytes
        self.partitions = partitions


class _Partition:
    def __init__(self) -> None:
        self.first = 0
        self.records: list[LogRecord] = []
        self.available = True

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class _Waker:
    """Lets one task wait until the store changes."""

    def __init__(self, store: MemoryStore, group: "set[_Waker]") -> None:
        self._event = asyncio.Event()
        self._unwatch = store.watch(self._event.set)
        self._group = group
        group.add(self)

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()

    def stop(self) -> None:
        if self in self._group:
            self._group.discard(self)
            self._unwatch()
