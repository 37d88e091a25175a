"""What a `KafkaLog` asks Kafka about its topics, and how Kafka's errors become ours."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from lockstep.log.errors import (
    AccessDenied,
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

DEFAULT_MAX_BYTES = 1_048_588

MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Codes that mean: this topic or partition is not there, or is not what it was."""

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)


class TopicIdentity:
    """A topic as this log first met it."""

    def __init__(self, identity: str, partitions: int, max_bytes: int) -> None:
        self.identity = identity
        self.partitions = partitions
        self.max_bytes = max_bytes
        self.ends: dict[int, int] = {}
        """The highest offset that an append got, for each partition: one below it is another topic's."""
        self.check_at = 0.0
        """When the next append is to make sure that the topic is still the same."""
        self.one_by_one = asyncio.Lock()


class Admin:
    """Questions to the cluster. Every one has a deadline of its own."""

    def __init__(self, options: Mapping[str, Any], request_seconds: float) -> None:
        self._seconds = request_seconds
        self._client = AdminClient(
            {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "retry.backoff.ms": 20, **options}
        )
        self.known: dict[str, TopicIdentity] = {}

    async def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=config)
        asked = self._client.create_topics([new], operation_timeout=self._seconds)
        await self._answer(asked[topic], topic)
        # Creation is answered by the controller; the brokers hear of it a moment later.
        deadline = asyncio.get_running_loop().time() + self._seconds
        while True:
            try:
                described = await self._described(topic)
                if described is not None and all(part.leader is not None for part in described.partitions):
                    await self.offsets(topic, first=False)
                    self.known.pop(topic, None)
                    return
            except (Unavailable, UnknownTopic, TopicDeleted):
                pass
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"topic {topic} was created but has no leader yet")
            await asyncio.sleep(0.01)

    async def delete(self, topic: str) -> None:
        await self._answer(self._client.delete_topics([topic], operation_timeout=self._seconds)[topic], topic)
        deadline = asyncio.get_running_loop().time() + self._seconds
        while await self._described(topic) is not None:
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"topic {topic} is still there {self._seconds:.0f} s after its deletion")
            await asyncio.sleep(0.01)

    async def describe(self, topic: str) -> TopicIdentity:
        """The topic as it is now."""
        described = await self._described(topic)
        if described is None:
            raise UnknownTopic(topic)
        return TopicIdentity(str(described.topic_id), len(described.partitions), await self._max_bytes(topic))

    async def identify(self, topic: str) -> TopicIdentity:
        """The topic as this log first met it; meets it now if it has not yet."""
        if topic not in self.known:
            met = await self.describe(topic)
            self.known.setdefault(topic, met)
        return self.known[topic]

    async def grown(self, topic: str) -> TopicIdentity:
        """The known topic with the partitions it has by now."""
        await self.require_same(topic)
        return self.known[topic]

    async def require_same(self, topic: str) -> None:
        """Raise if the topic is gone or is another than the one first met."""
        known = await self.identify(topic)
        described = await self._described(topic)
        if described is None:
            raise TopicDeleted(topic)
        if str(described.topic_id) != known.identity:
            raise TopicRecreated(topic)
        known.partitions = len(described.partitions)

    def changed_now(self, topics: Iterable[str], give_up: Callable[[], bool]) -> dict[str, LogError]:
        """Of these topics, those that are gone or others than first met. Blocks; for threads of their own.

        Asks until Kafka answers, or until it is told to `give_up`.
        """
        found: dict[str, LogError] = {}
        open_questions = {topic: 0 for topic in topics if topic in self.known}
        while open_questions and not give_up():
            asked = self._client.describe_topics(
                TopicCollection(list(open_questions)), request_timeout=self._seconds
            )
            for topic, answer in asked.items():
                try:
                    described = answer.result()
                except KafkaException as error:
                    if error.args[0].code() in MISSING:
                        open_questions[topic] += 1
                        if open_questions[topic] == 2:  # a broker that is just coming up may not know it yet
                            found[topic] = TopicDeleted(topic)
                            del open_questions[topic]
                    continue
                if topic in self.known and str(described.topic_id) != self.known[topic].identity:
                    found[topic] = TopicRecreated(topic)
                del open_questions[topic]
            if open_questions:
                time.sleep(0.05)
        return found

    async def offsets(self, topic: str, *, first: bool) -> dict[int, int]:
        known = await self.identify(topic)
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
        asked = self._client.list_offsets(
            {TopicPartition(topic, partition): spec for partition in range(known.partitions)},
            request_timeout=self._seconds,
        )
        return {
            place.partition: (await self._answer(answer, topic)).offset for place, answer in asked.items()
        }

    async def trim(self, topic: str, partition: int, before: int) -> None:
        known = await self.identify(topic)
        if not 0 <= partition < known.partitions:
            raise UnknownPartition(topic, partition, known.partitions)
        asked = self._client.delete_records(
            [TopicPartition(topic, partition, before)], request_timeout=self._seconds
        )
        for answer in asked.values():
            try:
                await asyncio.wrap_future(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.OFFSET_OUT_OF_RANGE:
                    raise await self.explain(error.args[0], topic, partition) from error
                raise await self.out_of_range(topic, partition, before) from error

    async def explain(
        self, error: KafkaError, topic: str, partition: int, size: int = 0, offset: int | None = None
    ) -> LogError:
        """Ask Kafka what lies behind an error that concerns one partition."""
        try:
            if error.code() in MISSING:
                await self.require_same(topic)
                known = self.known[topic]
                if not 0 <= partition < known.partitions:
                    return UnknownPartition(topic, partition, known.partitions)
            elif offset is not None and error.code() in (
                KafkaError._AUTO_OFFSET_RESET,
                KafkaError.OFFSET_OUT_OF_RANGE,
            ):
                await self.require_same(topic)
                return await self.out_of_range(topic, partition, offset)
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                return RecordTooLarge(topic, partition, size, (await self.describe(topic)).max_bytes)
        except LogError as found:
            return found
        return translate(error, f"{topic}/{partition}")

    async def out_of_range(self, topic: str, partition: int, offset: int) -> LogError:
        first = (await self.offsets(topic, first=True)).get(partition, 0)
        end = (await self.offsets(topic, first=False)).get(partition, 0)
        return OffsetOutOfRange(topic, partition, offset, first, end)

    def close(self) -> None:
        """librdkafka ends its threads when the client is collected."""
        self.known.clear()
        del self._client

    async def _described(self, topic: str) -> Any | None:
        asked = self._client.describe_topics(TopicCollection([topic]), request_timeout=self._seconds)
        try:
            return await asyncio.wrap_future(asked[topic])
        except KafkaException as error:
            if error.args[0].code() in MISSING:
                return None
            raise translate(error.args[0], topic) from error

    async def _max_bytes(self, topic: str) -> int:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = self._client.describe_configs([resource], request_timeout=self._seconds)
        try:
            settings = await asyncio.wrap_future(asked[resource])
            return int(settings["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError):
            return DEFAULT_MAX_BYTES  # not allowed to ask: Kafka itself will refuse what is too large

    async def _answer(self, asked: "concurrent.futures.Future[Any]", topic: str) -> Any:
        try:
            return await asyncio.wrap_future(asked)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExists(topic) from error
            if code in MISSING:
                if topic in self.known:
                    await self.require_same(topic)
                    raise Unavailable(f"{topic}: {error.args[0].str()}") from error
                raise UnknownTopic(topic) from error
            raise translate(error.args[0], topic) from error


def translate(error: KafkaError, what: str) -> LogError:
    """An error of Kafka's that needs no further question."""
    if error.code() in DENIED:
        return AccessDenied(f"{what}: {error.str()}")
    if error.code() in (
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
    ):
        return LogError(f"{what}: {error.str()}", hint="check the topic's name, partitions and settings")
    return Unavailable(f"{what}: {error.str()}")
