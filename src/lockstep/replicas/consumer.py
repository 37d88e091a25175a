"""`lockstep.Consumer`: a Kafka consumer that sees every output of a run once (design rule 8).

It reads the topic that all sites write to and keeps the first arrival of each output. In which order things
become durable, and why a restart neither loses nor repeats:

1. A record is *delivered* when the call that returns it returns; its partition's marks and next offset move
   at that moment, together.
2. A commit takes the next offset and the marks of the same moment and writes them as one record of the
   group: the offset with the marks in its metadata. There is no moment between the two.
3. Marks too large for the metadata go into a record of the compacted topic `lockstep.marks` under a key that
   is used once; it is flushed before the commit that refers to it, and only the record before it is deleted
   after. A commit that fails leaves an unused record, never a wrong one.
4. After a restart or a rebalance a partition starts at the committed offset with the committed marks. What
   was fetched but not delivered is fetched again.

What the application did with records after the last commit is its own to repeat: call `commit()` when a
result is safe. Without a group nothing is committed and reading starts at the beginning.
"""

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from lockstep.errors import LockstepError, UsageError
from lockstep.log.failover import LOOK_SECONDS, RECONNECT, LeaderSearch
from lockstep.observe.logger import get_logger
from lockstep.replicas.deduplicate import Marks, well_formed
from lockstep.replicas.marks_topic import MarksTopic
from lockstep.replicas.record import OutputRecord
from lockstep.spark.identity import IDENTITY_HEADER

logger = get_logger(__name__)

_BATCH = 1000
_INLINE_LIMIT = 4000
"""Kafka's default bound on commit metadata is 4096 bytes (`offset.metadata.max.bytes`)."""
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


class _Partition:
    """Where one output partition is: what is committed is exactly this."""

    __slots__ = ("attempted", "committed", "deliver_from", "marks", "next_offset", "reference")

    def __init__(self, next_offset: int, marks: Marks, deliver_from: int, reference: str) -> None:
        self.next_offset = next_offset
        self.marks = marks
        self.deliver_from = deliver_from
        self.committed = self.attempted = next_offset
        self.reference = reference


class Consumer:
    """Iterate over it, or call `poll` or `records`; close it (or use `with`) to commit what was delivered."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        group: str | None = None,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        commit_interval: float | None = 1.0,
        options: Mapping[str, Any] | None = None,
        timeout: float = 15.0,
    ) -> None:
        """`commit_interval` None leaves commits to you. `start` counts only where nothing is committed;
        `latest` still reads what is there, silently, to learn the marks. `options` are librdkafka's."""
        if start not in ("earliest", "latest"):
            raise UsageError(f"start={start!r} is not a place to start", hint="earliest or latest")
        self.topic = topic
        self.group = group
        self.duplicates = 0
        self.foreign = 0
        self._bootstrap = bootstrap_servers
        self._start = start
        self._commit_interval = commit_interval if group is not None else None
        self._timeout = timeout
        self._partitions: dict[int, _Partition] = {}
        self._raw: Iterator[Any] = iter(())
        self._generation = 0
        self._last_commit = time.monotonic()
        self._closed = False
        self._failed: Exception | None = None
        self._options = dict(options or {})
        self._marks_topic = MarksTopic(bootstrap_servers, self._options)
        self._search = LeaderSearch()
        self._kafka: Any = KafkaConsumer(
            {
                "fetch.queue.backoff.ms": 10,
                "fetch.error.backoff.ms": 50,
                **RECONNECT,
                "error_cb": self._search.lost,
                "queued.max.messages.kbytes": 32768,
                "session.timeout.ms": 10000,
                **self._options,
                "bootstrap.servers": bootstrap_servers,
                "group.id": group if group is not None else f"lockstep.reader.{topic}",
                "partition.assignment.strategy": "range",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
            },
            logger=logger,
        )
        try:
            count = self._partition_count(timeout)
            if group is None:
                self._on_assign(self._kafka, [TopicPartition(topic, p) for p in range(count)])
            else:
                self._kafka.subscribe(
                    [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
                )
        except BaseException:
            self._kafka.close()
            raise

    # Reading

    def __iter__(self) -> Iterator[OutputRecord]:
        while not self._closed:
            record = self.poll(1.0)
            if record is not None:
                yield record

    def poll(self, timeout: float = 1.0) -> OutputRecord | None:
        """The next output, or None when none came within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._commit_if_due()
        while True:
            for message in self._raw:
                record = self._accept(message)
                if record is not None:
                    return record
            if time.monotonic() > deadline:
                return None
            self._raw = iter(self._fetch(_BATCH, max(0.0, deadline - time.monotonic())))

    def records(self, timeout: float = 1.0, limit: int = _BATCH) -> list[OutputRecord]:
        """The outputs that are there, at least one unless `timeout` passes: the quick way to read many."""
        deadline = time.monotonic() + timeout
        self._commit_if_due()
        accepted = [record for message in self._raw if (record := self._accept(message)) is not None]
        while not accepted:
            remaining = deadline - time.monotonic()
            messages = self._fetch(limit, max(0.0, remaining))
            accepted = [record for message in messages if (record := self._accept(message)) is not None]
            if remaining <= 0:
                break
        return accepted

    # Committing

    def commit(self) -> None:
        """Make what was delivered so far durable, now."""
        if self.group is not None:
            self._commit(asynchronous=False)

    def close(self) -> None:
        """Commit what was delivered (unless commits are yours) and leave the group."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._commit_interval is not None and self._failed is None:
                self._commit(asynchronous=False)
        except KafkaException as error:
            logger.warning("the last commit failed, its records will come again: %s", error)
        finally:
            self._raw = iter(())
            self._kafka.close()
            self._marks_topic.close()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What a person may want to see

    @property
    def assigned(self) -> list[int]:
        return sorted(self._partitions)

    def marks(self, partition: int) -> Marks:
        return self._partitions[partition].marks

    def next_offset(self, partition: int) -> int:
        return self._partitions[partition].next_offset

    # Inside

    def _fetch(self, limit: int, timeout: float) -> list[Any]:
        """What is there, without waiting for more than one record, and for that one not always to the end."""
        if self._closed:
            raise UsageError("this consumer is closed")
        generation = self._generation
        self._search.look(self._kafka, [self.topic])
        first = self._kafka.poll(min(timeout, LOOK_SECONDS))
        if self._failed is not None:
            raise self._failed
        if first is None and generation == self._generation:
            return []
        rest: list[Any] = self._kafka.consume(limit - 1, 0) if limit > 1 else []
        if generation != self._generation:  # a rebalance: what we hold may belong to either side of it
            self._kafka.assign(
                [TopicPartition(self.topic, p, state.next_offset) for p, state in self._partitions.items()]
            )
            return []
        return [first, *rest]

    def _accept(self, message: Any) -> OutputRecord | None:
        if message.error() is not None:
            self._on_error(message.error())
            return None
        state = self._partitions.get(message.partition())
        offset = message.offset()
        if state is None or offset < state.next_offset:
            return None
        state.next_offset = offset + 1
        headers = message.headers()
        identity = None
        if headers:
            name, identity = headers[0]
            if name != IDENTITY_HEADER:
                identity = next((value for name, value in headers if name == IDENTITY_HEADER), None)
        if not well_formed(identity):
            self.foreign += 1
            if self.foreign == 1:
                logger.warning(
                    "%s has records that no site wrote (first: offset %d): passed over", self.topic, offset
                )
            return None
        if not state.marks.accept(identity):
            self.duplicates += 1
            return None
        if offset < state.deliver_from:
            return None
        return OutputRecord(message, headers, identity)

    def _on_error(self, error: Any) -> None:
        code = error.code()
        if code in _OUT_OF_RANGE:
            raise LockstepError(
                f"{self.topic}: the committed position is no longer in the topic ({error.str()})",
                hint="retention removed outputs that were never read; choose a new group to start over",
            )
        if code in _NO_TOPIC:
            raise LockstepError(f"topic {self.topic} is gone", hint="was it deleted while it was read?")
        if code in _DENIED:
            raise LockstepError(f"not allowed to read {self.topic}: {error.str()}")
        if error.fatal():
            raise LockstepError(f"Kafka consumer failed: {error.str()}")
        logger.debug("kafka: %s", error)

    def _partition_count(self, timeout: float) -> int:
        try:
            topic = self._kafka.list_topics(self.topic, timeout=timeout).topics[self.topic]
        except KafkaException as error:
            raise LockstepError(
                f"no Kafka broker answers at {self._bootstrap}", hint="is it running? `lockstep broker`"
            ) from error
        if topic.error is not None or not topic.partitions:
            raise LockstepError(
                f"there is no topic {self.topic}", hint="start the run first, or check the name"
            )
        return len(topic.partitions)

    def _on_assign(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """Runs inside poll; an error is kept and raised from there."""
        self._generation += 1
        self._raw = iter(())
        try:
            places = (
                kafka.committed(partitions, timeout=self._timeout) if self.group is not None else partitions
            )
            self._partitions = {place.partition: self._restore(kafka, place) for place in places}
        except (KafkaException, LockstepError) as error:
            self._failed = error
            kafka.assign([])
            return
        kafka.assign(
            [TopicPartition(self.topic, p, state.next_offset) for p, state in self._partitions.items()]
        )

    def _restore(self, kafka: Any, place: TopicPartition) -> _Partition:
        if place.offset >= 0 and self.group is not None:
            text = place.metadata or ""
            if not text:
                raise LockstepError(
                    f"group {self.group} committed {self.topic} without marks",
                    hint="another kind of consumer uses this group; choose a group of its own",
                )
            return _Partition(place.offset, self._marks_topic.resolve(text), 0, text)
        deliver_from = 0
        if self._start == "latest":
            deliver_from = kafka.get_watermark_offsets(place, timeout=self._timeout)[1]
        return _Partition(OFFSET_BEGINNING, Marks(), deliver_from, "")

    def _on_revoke(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        self._generation += 1
        self._raw = iter(())
        if self._commit_interval is not None:
            try:
                self._commit(asynchronous=False)
            except KafkaException as error:
                logger.warning("commit before a rebalance failed, its records will come again: %s", error)
        self._partitions = {}

    def _on_lost(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        self._generation += 1
        self._raw = iter(())
        self._partitions = {}

    def _commit_if_due(self) -> None:
        if self._commit_interval is not None:
            now = time.monotonic()
            if now - self._last_commit >= self._commit_interval:
                self._last_commit = now
                self._commit(asynchronous=True)

    def _commit(self, *, asynchronous: bool) -> None:
        moved = [
            (partition, state)
            for partition, state in self._partitions.items()
            if state.next_offset > max(0, state.attempted if asynchronous else state.committed)
            and state.next_offset >= state.deliver_from
        ]
        if not moved:
            return
        offsets = []
        replaced = []
        for partition, state in moved:
            text = MarksTopic.inline(state.marks)
            if len(text) > _INLINE_LIMIT:
                text = self._marks_topic.store(f"{self.group}/{self.topic}/{partition}", state.marks)
                asynchronous = False
            offsets.append(TopicPartition(self.topic, partition, state.next_offset, text))
            replaced.append((state, state.next_offset, text))
        results = self._kafka.commit(offsets=offsets, asynchronous=asynchronous)
        for result in results or ():
            if result.error is not None:
                raise KafkaException(result.error)
        for state, offset, text in replaced:
            state.attempted = offset
            if not asynchronous:
                state.committed = offset
            if state.reference != text:
                self._marks_topic.forget(state.reference)
                state.reference = text
