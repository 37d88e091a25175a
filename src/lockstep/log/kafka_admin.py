"""What a `KafkaLog` asks Kafka about its topics, and how Kafka's errors become ours."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
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
from lockstep.log.failover import RECONNECT

CHANGE_SECONDS = 3.0
"""How long one attempt of a change may take, and the last ones of a question."""
QUESTION_SECONDS = 0.25
"""How long the first attempt of a question may take: it may have gone to a broker that has just died."""
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

RETRIED = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)

_Question = Callable[[float], Mapping[Any, "concurrent.futures.Future[Any]"]]
"""Given the seconds that it may take, the answers to come."""


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
        self._client = AdminClient({"retry.backoff.ms": 20, **RECONNECT, **options})
        self.known: dict[str, TopicIdentity] = {}
        self._looking: asyncio.Future[None] | None = None

    async def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=config)
        await self._ask(
            topic,
            lambda seconds: self._client.create_topics([new], request_timeout=seconds),
            attempt=CHANGE_SECONDS,
        )
        self.known.pop(topic, None)
        # Creation is answered by the controller; the brokers hear of it a moment later.
        deadline = asyncio.get_running_loop().time() + self._seconds
        while True:
            described = await self._described(topic)
            if described is not None and all(part.leader is not None for part in described.partitions):
                try:
                    await self.offsets(topic, first=False)
                    return
                except (UnknownTopic, TopicDeleted, Unavailable):
                    self.known.pop(topic, None)  # asked a broker that has not heard of it yet
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"topic {topic} was created but has no leader yet")
            await asyncio.sleep(0.01)

    async def delete(self, topic: str) -> None:
        await self._ask(
            topic,
            lambda seconds: self._client.delete_topics([topic], request_timeout=seconds),
            attempt=CHANGE_SECONDS,
        )
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

    async def require_same(self, topic: str, identity: str | None = None) -> None:
        """Raise if the topic is gone or is another than the one first met (or the one of that identity)."""
        known = await self.identify(topic)
        described = await self._described(topic)
        if described is None:
            raise TopicDeleted(topic)
        if str(described.topic_id) != (identity or known.identity):
            raise TopicRecreated(topic)
        known.partitions = len(described.partitions)

    def changed_now(self, identities: Mapping[str, str], give_up: Callable[[], bool]) -> dict[str, LogError]:
        """Of these topics, those that are gone or have another identity. Blocks; for threads of their own.

        Asks until Kafka answers, or until it is told to `give_up`.
        """
        found: dict[str, LogError] = {}
        missed = dict.fromkeys(identities, 0)
        attempt_seconds = QUESTION_SECONDS
        while missed and not give_up():
            asked = self._client.describe_topics(
                TopicCollection(list(missed)), request_timeout=attempt_seconds
            )
            attempt_seconds = min(2 * attempt_seconds, CHANGE_SECONDS)
            for topic, answer in asked.items():
                try:
                    described = answer.result()
                except KafkaException as error:
                    if error.args[0].code() in MISSING:
                        missed[topic] += 1
                        if missed[topic] == 2:  # a broker that is just coming up may not know it yet
                            found[topic] = TopicDeleted(topic)
                            del missed[topic]
                    continue
                if str(described.topic_id) != identities[topic]:
                    found[topic] = TopicRecreated(topic)
                del missed[topic]
            if missed:
                _look_around(self._client)
                time.sleep(0.05)
        return found

    async def offsets(self, topic: str, *, first: bool) -> dict[int, int]:
        known = await self.identify(topic)
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
        wanted = {TopicPartition(topic, partition): spec for partition in range(known.partitions)}
        answers = await self._ask(
            topic, lambda seconds: self._client.list_offsets(wanted, request_timeout=seconds), is_offset
        )
        return {place.partition: answer.offset for place, answer in answers.items()}

    def ends(
        self, places: Sequence[tuple[str, int]], seconds: float
    ) -> "asyncio.Future[dict[tuple[str, int], int]]":
        """One question for all of them, and one wake-up of the loop for all answers: it is asked all the time."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[dict[tuple[str, int], int]] = loop.create_future()
        found: dict[tuple[str, int], int] = {}
        wanted = {TopicPartition(*place): OffsetSpec.latest() for place in places}
        try:
            asked = self._client.list_offsets(wanted, request_timeout=seconds)
        except KafkaException:
            done.set_result(found)
            return done

        def answered(_: "concurrent.futures.Future[Any]") -> None:
            """On a thread of librdkafka's, or on ours if it was quicker: so the last may come twice, never not."""
            if all(answer.done() for answer in asked.values()) and not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        def finish() -> None:
            for place, answer in asked.items():
                if answer.exception() is None and is_offset(answer.result()):
                    found[place.topic, place.partition] = answer.result().offset
            if not done.done():
                done.set_result(found)
            if len(found) < len(wanted):
                self._look_around_aside(loop)

        for answer in asked.values():
            answer.add_done_callback(answered)
        return done

    async def trim(self, topic: str, partition: int, before: int) -> None:
        known = await self.identify(topic)
        if not 0 <= partition < known.partitions:
            raise UnknownPartition(topic, partition, known.partitions)
        if before > (await self.offsets(topic, first=False))[partition]:
            raise await self.out_of_range(topic, partition, before)
        place = TopicPartition(topic, partition, before)
        await self._ask(topic, lambda seconds: self._client.delete_records([place], request_timeout=seconds))

    async def explain(
        self,
        error: KafkaError,
        topic: str,
        partition: int,
        *,
        size: int = 0,
        offset: int | None = None,
        identity: str | None = None,
    ) -> LogError:
        """Ask Kafka what lies behind an error that concerns one partition."""
        try:
            # librdkafka says "destroyed" for records of a partition that vanished under them.
            if error.code() in MISSING or error.code() == KafkaError._DESTROY:
                await self.require_same(topic, identity)
                known = self.known[topic]
                if not 0 <= partition < known.partitions:
                    return UnknownPartition(topic, partition, known.partitions)
            elif offset is not None and error.code() in (
                KafkaError._AUTO_OFFSET_RESET,
                KafkaError.OFFSET_OUT_OF_RANGE,
            ):
                await self.require_same(topic, identity)
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
        wanted = TopicCollection([topic])
        try:
            answers = await self._patiently(
                lambda seconds: self._client.describe_topics(wanted, request_timeout=seconds)
            )
        except KafkaException as error:
            if error.args[0].code() in MISSING:
                return None
            raise translate(error.args[0], topic) from error
        return answers[topic]

    async def _max_bytes(self, topic: str) -> int:
        wanted = ConfigResource(ResourceType.TOPIC, topic)
        try:
            answers = await self._patiently(
                lambda seconds: self._client.describe_configs([wanted], request_timeout=seconds)
            )
            return int(answers[wanted]["max.message.bytes"].value)
        except KafkaException as error:
            if error.args[0].code() in DENIED:
                return DEFAULT_MAX_BYTES  # not allowed to ask: Kafka itself will refuse what is too large
            raise translate(error.args[0], topic) from error

    async def _ask(
        self,
        topic: str,
        ask: _Question,
        holds: Callable[[Any], bool] = lambda _: True,
        *,
        attempt: float = QUESTION_SECONDS,
    ) -> dict[Any, Any]:
        try:
            return await self._patiently(ask, holds, attempt=attempt)
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

    async def _patiently(
        self,
        ask: _Question,
        holds: Callable[[Any], bool] = lambda _: True,
        *,
        attempt: float = QUESTION_SECONDS,
    ) -> dict[Any, Any]:
        """Ask until there are answers that all hold, or the time is over.

        librdkafka may wait for a node that died until its request times out, so a request gets a short time,
        longer from `attempt` to attempt, and between two the client looks anew for the nodes that are there.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        attempts = 0
        while True:
            attempts += 1
            asked = ask(max(0.1, min(attempt, deadline - loop.time())))
            attempt = min(2 * attempt, CHANGE_SECONDS)
            try:
                answers = {key: await asyncio.wrap_future(answer) for key, answer in asked.items()}
                if all(map(holds, answers.values())):
                    return answers
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            except KafkaException as error:
                code = error.args[0].code()
                if attempts > 1 and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return {}  # by the attempt whose answer did not reach us
                if code not in RETRIED or loop.time() > deadline:
                    raise
            await loop.run_in_executor(None, _look_around, self._client)

    def _look_around_aside(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._looking is None or self._looking.done():
            self._looking = loop.run_in_executor(None, _look_around, self._client)


def _look_around(client: AdminClient) -> None:
    """Learn which brokers there are: otherwise librdkafka may ask one that died for seconds. Blocks."""
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=1.0)


def is_offset(answer: Any) -> bool:
    """Of a partition whose broker it lost while asking, librdkafka tells an invalid offset and no error."""
    return bool(answer.offset >= 0)


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
