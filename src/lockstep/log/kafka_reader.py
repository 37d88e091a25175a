"""A reader of Kafka partitions: one consumer, one thread that polls it, a bounded buffer in between.

Back-pressure: when the buffer is full the thread stops polling, librdkafka's own bounded queue fills up, and
fetching stops; nothing is thrown away and fetched again. `pause` stops fetching a single partition.

Latency: the thread waits for one message and then takes whatever else has arrived, so a lone record is
handed over at once and a flood goes over in large batches.

Identity: when a topic is deleted and created again, librdkafka changes over to the new one without a word.
Its fetches fail once on the way, and a failed fetch is backed off for `_BACKOFF_MS`. So records that arrive
within `_TRUST_SECONDS` of their predecessors come from the same topic; after a longer silence they are handed
over only once Kafka, asked after they arrived, still has the topic under the same id. A reader in steady flow
never asks; one that is idle asks once a second, which also finds deleted topics.
"""

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lockstep.errors import UsageError
from lockstep.log.errors import LogClosed, LogError, OffsetOutOfRange, Unavailable, UnknownPartition
from lockstep.log.failover import RECONNECT, LeaderSearch
from lockstep.log.interface import DEFAULT_LIMIT, Reader
from lockstep.log.kafka_admin import DENIED, MISSING, Admin, translate
from lockstep.protocol.machine import LogRecord

PINNED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
_BACKOFF_MS = 100
_TRUST_SECONDS = 0.05
_IDLE_CHECK_SECONDS = 1.0
_POLL_SECONDS = 0.02
_POLL_BATCH = 5_000
_Place = tuple[str, int]


class KafkaReader(Reader):
    """See `lockstep.log.interface.Reader`."""

    def __init__(
        self,
        options: Mapping[str, Any],
        admin: Admin,
        capacity: int,
        closed: "Callable[[KafkaReader], object]",
    ) -> None:
        for name in options.keys() & PINNED.keys():
            raise UsageError(f"the Kafka option {name} is not free: the log's promises depend on it")
        self._loop = asyncio.get_running_loop()
        self._admin = admin
        self._capacity = capacity
        self._on_closed = closed
        self._search = LeaderSearch()
        self._consumer = Consumer(
            {
                "group.id": f"lockstep-{uuid.uuid4()}",  # librdkafka wants one; nothing is committed to it
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 5,
                "queued.min.messages": 20_000,
                "queued.max.messages.kbytes": 16_384,
                **RECONNECT,
                **options,
                "fetch.error.backoff.ms": _BACKOFF_MS,
                **PINNED,
                "error_cb": self._global_error,
            }
        )
        self._subscriptions: dict[_Place, _Subscription] = {}
        self._chunks: deque[_Chunk] = deque()
        self._put = 0  # counted by the thread only
        self._taken = 0  # counted by the loop only
        self._room = threading.Event()
        self._arrived = asyncio.Event()
        self._wake_asked = False
        self._commands: deque[Callable[[], None]] = deque()
        self._closed = False
        self._fatal: LogError | None = None
        self._followed: dict[_Place, _Subscription] = {}  # the thread's own view
        self._empty_at = float("-inf")
        self._checked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="lockstep-log-reader", daemon=True)
        self._thread.start()

    async def subscribe(self, topic: str, partition: int, offset: int) -> None:
        if offset < 0:
            raise UsageError(f"{offset} is not an offset", hint="ask for first_offsets or end_offsets")
        self._require_usable()
        await self._admin.require_same(topic)
        known = self._admin.known[topic]
        if not 0 <= partition < known.partitions:
            raise UnknownPartition(topic, partition, known.partitions)
        self._follow(_Subscription(topic, partition, known.identity, offset))

    async def unsubscribe(self, topic: str, partition: int) -> None:
        if self._subscriptions.pop((topic, partition), None) is not None:
            self._commands.append(lambda: self._unassign((topic, partition)))

    async def next(self, limit: int = DEFAULT_LIMIT) -> list[LogRecord]:
        while True:
            self._require_usable()
            self._arrived.clear()
            records, moved, problem = self._take(limit)
            if problem is not None:
                await self._settle(problem)
            elif records or moved:
                return records
            else:
                await self._arrived.wait()

    def position(self, topic: str, partition: int) -> int:
        return self._subscriptions[topic, partition].position

    def stands_at(self, topic: str, partition: int, offset: int) -> bool:
        subscription = self._subscriptions.get((topic, partition))
        return subscription is not None and subscription.position == offset

    def pause(self, topic: str, partition: int) -> None:
        self._commands.append(lambda: self._consumer.pause([TopicPartition(topic, partition)]))

    def resume(self, topic: str, partition: int) -> None:
        self._commands.append(lambda: self._consumer.resume([TopicPartition(topic, partition)]))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._arrived.set()
            self._room.set()
            self._on_closed(self)
            await self._loop.run_in_executor(None, self._thread.join)

    def _require_usable(self) -> None:
        if self._closed:
            raise LogClosed
        if self._fatal is not None:
            raise self._fatal

    def _follow(self, subscription: "_Subscription") -> None:
        self._subscriptions[subscription.place] = subscription
        self._commands.append(lambda: self._assign(subscription))

    def _take(self, limit: int) -> "tuple[list[LogRecord], bool, _Chunk | None]":
        """Records from the buffer, whether a position moved over a hole, and an error that stands next."""
        records: list[LogRecord] = []
        moved = False
        while self._chunks and len(records) < limit:
            chunk = self._chunks[0]
            subscription = chunk.subscription
            if self._subscriptions.get(subscription.place) is not subscription:
                pass  # it was moved or ended since
            elif chunk.error is not None:
                if records or moved:
                    break
                self._chunks.popleft()
                return records, moved, chunk
            elif chunk.records:
                wanted = limit - len(records)
                if len(chunk.records) > wanted:
                    records += chunk.records[:wanted]
                    del chunk.records[:wanted]
                    self._taken += wanted
                    subscription.position = records[-1].offset + 1
                    break
                records += chunk.records
                subscription.position = chunk.end
            elif chunk.end > subscription.position:
                subscription.position = chunk.end
                moved = True
            self._taken += len(chunk.records)
            self._chunks.popleft()
        self._room.set()
        return records, moved, None

    async def _settle(self, chunk: "_Chunk") -> None:
        """End a subscription with the error that describes it best, unless it can simply go on."""
        subscription = chunk.subscription
        place, position = subscription.place, subscription.position
        del self._subscriptions[place]
        match chunk.error:
            case LogError() as found:
                pass
            case error:
                found = await self._admin.explain(
                    error, *place, offset=position, identity=subscription.identity
                )
        match found:
            case Unavailable() | OffsetOutOfRange(in_range=True):
                # The topic is the same and the offset is there: a broker that had just come up did not know
                # it yet, or the record was being written. Go on from where we are.
                self._follow(_Subscription(*place, subscription.identity, position))
            case _:
                self._commands.append(lambda: self._unassign(place))
                raise found

    # What follows runs on the thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                while self._commands:
                    self._commands.popleft()()
                if self._put - self._taken >= self._capacity:
                    self._room.clear()
                    if self._put - self._taken >= self._capacity:
                        self._room.wait(_POLL_SECONDS)
                    continue
                self._poll()
        except KafkaException as error:
            self._fatal = translate(error.args[0], "reader")
            self._wake()
        finally:
            self._consumer.close()

    def _poll(self) -> None:
        self._search.look(self._consumer, {place[0] for place in self._followed})
        first = self._consumer.poll(0)
        if first is None:
            self._empty_at = time.monotonic()
            first = self._consumer.poll(_POLL_SECONDS)
            if first is None:
                if time.monotonic() - self._checked_at > _IDLE_CHECK_SECONDS:
                    self._check(self._followed.values())
                return
        messages = [first, *self._consumer.consume(_POLL_BATCH, 0)]
        now = time.monotonic()
        doubtful = [
            followed
            for place in {(message.topic(), message.partition()) for message in messages}
            if (followed := self._followed.get(place)) is not None
            and now - followed.fresh_at > _TRUST_SECONDS
        ]
        fresh_at = self._empty_at
        if doubtful:
            fresh_at = time.monotonic()
            if not self._check(doubtful):
                return
        self._hand_over(messages, fresh_at)

    def _check(self, subscriptions: "Iterable[_Subscription]") -> bool:
        """Whether the topics are still those that were subscribed to; subscriptions to any other one end."""
        self._checked_at = time.monotonic()
        identities = {subscription.place[0]: subscription.identity for subscription in subscriptions}
        found = self._admin.changed_now(identities, lambda: self._closed)
        for place, subscription in list(self._followed.items()):
            if place[0] in found:
                self._chunks.append(_Chunk(subscription, error=found[place[0]]))
                self._unassign(place)
        if found:
            self._wake()
        return not self._closed

    def _assign(self, subscription: "_Subscription") -> None:
        place = subscription.place
        if place in self._followed:
            self._consumer.incremental_unassign([TopicPartition(*place)])
        self._followed[place] = subscription
        self._consumer.incremental_assign([TopicPartition(*place, subscription.position)])

    def _unassign(self, place: _Place) -> None:
        if self._followed.pop(place, None) is not None:
            self._consumer.incremental_unassign([TopicPartition(*place)])

    def _hand_over(self, messages: list[Message], fresh_at: float) -> None:
        """`fresh_at`: a moment before which none of the messages arrived, or at which they were checked."""
        chunks: list[_Chunk] = []
        chunk: _Chunk | None = None
        for message in messages:
            place = (message.topic(), message.partition())
            error = message.error()
            if chunk is None or error is not None or chunk.subscription.place != place:
                subscription = self._followed.get(place)
                if subscription is None:
                    self._global_error(error)
                    continue
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        chunks.append(_Chunk(subscription, end=message.offset()))
                    elif not error.retriable() or error.code() in MISSING:
                        chunks.append(_Chunk(subscription, error=error))
                    chunk = None
                    continue
                chunk = _Chunk(subscription)
                chunks.append(chunk)
                subscription.fresh_at = fresh_at
            offset = message.offset()
            headers = message.headers()
            chunk.records.append(
                LogRecord(
                    place[0],
                    place[1],
                    offset,
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(headers) if headers else (),
                )
            )
            chunk.end = offset + 1
            self._put += 1
        self._chunks.extend(chunks)  # only now: the loop may take a chunk as soon as it is there
        self._wake()

    def _global_error(self, error: KafkaError | None) -> None:
        if error is None:
            return
        self._search.lost(error)
        if error.fatal() or error.code() in DENIED:
            self._fatal = translate(error, "reader")
            self._wake()

    def _wake(self) -> None:
        if not self._wake_asked:
            self._wake_asked = True
            self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._wake_asked = False
        self._arrived.set()


class _Subscription:
    """Moving a subscription makes a new one: what was fetched for the old one is recognised and dropped."""

    __slots__ = ("fresh_at", "identity", "place", "position")

    def __init__(self, topic: str, partition: int, identity: str, position: int) -> None:
        self.place = (topic, partition)
        self.identity = identity
        self.position = position
        self.fresh_at = float("-inf")


class _Chunk:
    """Successive records of one partition; or a new end of it; or an error in its place among them."""

    __slots__ = ("end", "error", "records", "subscription")

    def __init__(
        self, subscription: _Subscription, *, end: int = 0, error: KafkaError | LogError | None = None
    ) -> None:
        self.subscription = subscription
        self.records: list[LogRecord] = []
        self.end = end
        self.error = error
