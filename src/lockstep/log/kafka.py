"""The log on Kafka, through librdkafka (confluent-kafka).

Writing: one idempotent producer with acks=all. An append that was accepted waits as long as it must; the
bytes on their way are bounded, and appends beyond the bound wait their turn in the order of their calls.

Identity: a topic is known by the id that Kafka gave it when this log first met it. Offsets of a topic that
was deleted and created again mean other records, so such a topic is refused with `TopicRecreated`.

librdkafka calls back on threads of its own; results cross into the event loop in batches, one wake-up for
all that are ready, which is what carries tens of thousands of records a second.
"""

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lockstep.errors import UsageError
from lockstep.log.errors import LogClosed, LogError, RecordTooLarge, Unavailable, UnknownPartition
from lockstep.log.failover import RECONNECT, LeaderSearch
from lockstep.log.interface import DEFAULT_LIMIT, RECORD_OVERHEAD, Entry, Log
from lockstep.log.kafka_admin import Admin, TopicIdentity, translate
from lockstep.log.kafka_reader import KafkaReader
from lockstep.protocol.machine import LogRecord

PINNED = {
    "enable.idempotence": True,
    "acks": "all",
    # Java's default, so that whoever hashes a key, in Python or in Spark, finds the same partition.
    "partitioner": "murmur2_random",
}
BATCH_BYTES = 262_144
_OPEN_READS = 8
_POLL_SECONDS = 0.1
_CHECK_SECONDS = 1.0


class KafkaLog(Log):
    """`options` (security and others) go to every librdkafka client untouched; see `PINNED` for the limits."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        options: Mapping[str, Any] | None = None,
        linger_ms: float = 0.5,
        max_in_flight_bytes: int = 32 << 20,
        request_seconds: float = 10.0,
    ) -> None:
        """`request_seconds`: how long a question, or the last append at `close`, waits for Kafka."""
        given = dict(options or {})
        for name in given.keys() & PINNED.keys():
            raise UsageError(f"the Kafka option {name} is not free: the log's promises depend on it")
        self._options = {"bootstrap.servers": bootstrap_servers, "log_level": 0, **given}
        self._linger_ms = linger_ms
        self._max_in_flight = max_in_flight_bytes
        self._seconds = request_seconds
        try:
            self.admin = Admin(self._options, request_seconds)
        except KafkaException as error:
            raise UsageError(f"Kafka's client refuses these options: {error.args[0].str()}") from error
        self._writer: _Writer | None = None
        self._reads: OrderedDict[tuple[str, int], KafkaReader] = OrderedDict()
        self._read_locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._readers: set[KafkaReader] = set()
        self._closed = False

    async def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        self._require_open()
        await self.admin.create(topic, partitions, dict(config or {}))

    async def delete_topic(self, topic: str) -> None:
        self._require_open()
        await self.admin.delete(topic)

    async def partitions(self, topic: str) -> int:
        self._require_open()
        return (await self.admin.describe(topic)).partitions

    async def append_batch(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        self._require_open()
        known = self.admin.known.get(topic) or await self.admin.identify(topic)
        if not 0 <= partition < known.partitions:
            known = await self.admin.grown(topic)  # partitions can be added to a topic, never taken away
            if not 0 <= partition < known.partitions:
                raise UnknownPartition(topic, partition, known.partitions)
            if self._writer is not None:
                await self._writer.look_again(topic)
        if not entries:
            return []
        for entry in entries:
            if entry.size() > known.max_bytes:
                raise RecordTooLarge(topic, partition, entry.size(), known.max_bytes)
        writer = self._ensure_writer()
        if known.max_bytes >= BATCH_BYTES + RECORD_OVERHEAD:
            return await writer.append(known, topic, partition, entries)
        # A batch of records must fit the topic's limit too: with a small one, records go one by one.
        async with known.one_by_one:
            return [(await writer.append(known, topic, partition, (entry,)))[0] for entry in entries]

    async def ready(self, topic: str) -> None:
        self._require_open()
        await self.admin.identify(topic)
        await self._ensure_writer().look_again(topic)

    async def read(
        self, topic: str, partition: int, offset: int, *, limit: int = DEFAULT_LIMIT, wait: bool = True
    ) -> list[LogRecord]:
        self._require_open()
        place = (topic, partition)
        async with self._read_locks.setdefault(place, asyncio.Lock()):
            reader = await self._reader_at(place, offset)
            end = offset if wait else (await self.end_offsets(topic))[partition]
            while wait or reader.position(*place) < end:
                try:
                    if records := await reader.next(limit):
                        return records
                except BaseException:
                    self._reads.pop(place, None)
                    await reader.close()
                    raise
            return []

    async def first_offsets(self, topic: str) -> dict[int, int]:
        self._require_open()
        return await self.admin.offsets(topic, first=True)

    async def end_offsets(self, topic: str) -> dict[int, int]:
        self._require_open()
        return await self.admin.offsets(topic, first=False)

    def ends(
        self, places: Sequence[tuple[str, int]], *, seconds: float = 1.0
    ) -> "asyncio.Future[dict[tuple[str, int], int]]":
        self._require_open()
        return self.admin.ends(places, seconds)

    async def trim(self, topic: str, partition: int, before: int) -> None:
        self._require_open()
        await self.admin.trim(topic, partition, before)

    def reader(self, *, capacity: int = 20_000) -> KafkaReader:
        self._require_open()
        reader = KafkaReader(self._options, self.admin, capacity, self._readers.discard)
        self._readers.add(reader)
        return reader

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for reader in tuple(self._readers):
                await reader.close()
            if self._writer is not None:
                await self._writer.close(self._seconds)
                self._writer = None
            self.admin.close()

    def _ensure_writer(self) -> "_Writer":
        if self._writer is None:
            self._writer = _Writer(self._options, self._linger_ms, self._max_in_flight, self.admin)
        return self._writer

    async def _reader_at(self, place: tuple[str, int], offset: int) -> KafkaReader:
        """A kept reader that stands at `offset`: successive reads of a partition cost no new consumer."""
        reader = self._reads.pop(place, None)
        if reader is None:
            reader = self.reader(capacity=4 * DEFAULT_LIMIT)
        self._reads[place] = reader
        if not reader.stands_at(*place, offset):
            await reader.subscribe(*place, offset)
        while len(self._reads) > _OPEN_READS:
            idle = next((old for old in self._reads if not self._read_locks[old].locked()), None)
            if idle is None:
                break
            await self._reads.pop(idle).close()
        return reader

    def _require_open(self) -> None:
        if self._closed:
            raise LogClosed


class _Writer:
    """The producer, the thread that polls it, and the bound on what is on its way."""

    def __init__(self, options: Mapping[str, Any], linger_ms: float, max_bytes: int, admin: Admin) -> None:
        self._loop = asyncio.get_running_loop()
        self._admin = admin
        self._search = LeaderSearch()
        self._producer = Producer(
            {
                "linger.ms": linger_ms,
                "batch.size": BATCH_BYTES,
                "delivery.timeout.ms": 2_147_483_647,  # an accepted record waits as long as it must
                "message.max.bytes": 100_000_000,  # the topic's own limit decides, and was asked for
                "queue.buffering.max.messages": 10_000_000,  # our own bound, in bytes, is the tighter one
                "queue.buffering.max.kbytes": 2_000_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                **RECONNECT,
                "topic.metadata.propagation.max.ms": 2_000,
                **options,
                **PINNED,
                "error_cb": self._on_error,
            }
        )
        self._max_bytes = max_bytes
        self._topics: tuple[str, ...] = ()
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._settled: deque[_Batch] = deque()
        self._wake_asked = False
        self._fatal: LogError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="lockstep-log-writer", daemon=True)
        self._thread.start()

    async def append(
        self, known: TopicIdentity, topic: str, partition: int, entries: Sequence[Entry]
    ) -> list[int]:
        if self._waiting or self._bytes > self._max_bytes:
            turn = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                self._waiting.remove(turn)
                self._let_in()
                raise
            # Only now out of the queue: nobody who came later found it empty and went first.
            self._waiting.popleft()
        if self._fatal is not None:
            raise self._fatal
        if topic not in self._topics:
            self._topics += (topic,)
        batch = _Batch(self, len(entries), sum(entry.size() for entry in entries))
        self._bytes += batch.size
        self._let_in()
        produce = self._producer.produce
        for index, entry in enumerate(entries):
            more: dict[str, Any] = {}
            if entry.timestamp is not None:
                more["timestamp"] = entry.timestamp
            if entry.headers:
                more["headers"] = list(entry.headers)
            try:
                produce(topic, entry.value, entry.key, partition, on_delivery=batch.slot(index), **more)
            except (KafkaException, BufferError) as error:
                batch.refused(index, error)
        await batch.done
        if batch.error is not None:
            raise await self._admin.explain(batch.error, topic, partition, size=batch.largest(entries))
        offsets: list[int] = batch.offsets
        if offsets[0] < known.ends.get(partition, 0) or self._loop.time() > known.check_at:
            known.check_at = self._loop.time() + _CHECK_SECONDS
            with contextlib.suppress(Unavailable):  # the records are in the log, whoever answers or not
                await self._admin.require_same(topic)
        known.ends[partition] = max(offsets[-1], known.ends.get(partition, 0))
        return offsets

    async def look_again(self, topic: str) -> None:
        """Let the producer hear of partitions that were added."""
        try:
            await self._loop.run_in_executor(None, lambda: self._producer.list_topics(topic, timeout=10.0))
        except KafkaException as error:
            raise translate(error.args[0], topic) from error

    async def close(self, seconds: float) -> None:
        """Give what is on its way `seconds` to arrive; what did not is told to whoever waits for it."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(LogClosed())
        left = await self._loop.run_in_executor(None, self._producer.flush, seconds)
        if left:
            self._producer.purge()
            await self._loop.run_in_executor(None, self._producer.flush, 1.0)
        self._stopping.set()
        await self._loop.run_in_executor(None, self._thread.join)
        self._hand_over()

    def settled(self, batch: "_Batch") -> None:
        """Called on the polling thread (or the loop's), once for a batch."""
        self._settled.append(batch)
        if not self._wake_asked:
            self._wake_asked = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._wake_asked = False
        while self._settled:
            batch = self._settled.popleft()
            self._bytes -= batch.size
            if not batch.done.done():
                batch.done.set_result(None)
        self._let_in()

    def _let_in(self) -> None:
        """Let the first in the queue go on, if there is room; it lets in the next one itself."""
        if self._waiting and self._bytes <= self._max_bytes and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_POLL_SECONDS)
            self._search.look(self._producer, self._topics)

    def _on_error(self, error: KafkaError) -> None:
        self._search.lost(error)
        if error.fatal():
            self._fatal = LogError(
                f"the Kafka producer cannot go on: {error.str()}",
                hint="open the log again; see Kafka's own log",
            )


class _Batch:
    """The entries of one append that are on their way."""

    __slots__ = ("_left", "_writer", "done", "error", "offsets", "size")

    def __init__(self, writer: _Writer, count: int, size: int) -> None:
        self._writer = writer
        self._left = count
        self.size = size
        self.offsets = [-1] * count
        self.error: KafkaError | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def slot(self, index: int) -> Any:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.offsets[index] = message.offset()
            elif self.error is None:
                self.error = error
            self._settle_one()

        return delivered

    def refused(self, index: int, error: KafkaException | BufferError) -> None:
        if self.error is None:
            self.error = (
                error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)
            )
        self._settle_one()

    def largest(self, entries: Sequence[Entry]) -> int:
        return max(entry.size() for entry in entries)

    def _settle_one(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._writer.settled(self)
