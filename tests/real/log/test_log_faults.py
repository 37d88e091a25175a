"""What goes wrong with Kafka has a defined outcome, and none loses or repeats a record silently."""

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from contract import entries, take, values

from lockstep.errors import UsageError
from lockstep.log.broker import Broker
from lockstep.log.errors import AccessDenied, LogClosed, LogError, TopicRecreated, Unavailable, UnknownTopic
from lockstep.log.interface import Log
from lockstep.log.kafka import KafkaLog
from lockstep.ports import free_port

pytestmark = pytest.mark.real
DEADLINE = 90.0


@pytest.fixture
def topic() -> str:
    return f"faults-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that these tests may kill."""
    with Broker(tmp_path_factory.mktemp("killed")) as broker:
        yield broker


async def append_steadily(log: Log, topic: str, stop: asyncio.Event) -> list[int]:
    """Append 0, 1, 2, ... without waiting for the answers; the offsets that they got."""
    appends: list[asyncio.Task[int]] = []
    for number in itertools.count():
        if stop.is_set():
            break
        appends.append(asyncio.create_task(log.append(topic, 0, str(number).encode())))
        await asyncio.sleep(0.001)
    return list(await asyncio.gather(*appends))


def test_a_broker_that_goes_away_and_comes_back_costs_no_record_and_repeats_none(
    own_broker: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE), KafkaLog(own_broker.bootstrap_servers) as log:
            await log.create_topic(topic)
            async with log.reader() as reader:
                await reader.subscribe(topic, 0, 0)
                stop = asyncio.Event()
                appending = asyncio.create_task(append_steadily(log, topic, stop))
                taken = await take(reader, 200)
                await asyncio.to_thread(own_broker.kill)
                await asyncio.to_thread(own_broker.restart)
                taken += await take(reader, 1_000)
                stop.set()
                offsets = await appending
                assert offsets == list(range(len(offsets)))
                taken += await take(reader, len(offsets) - len(taken))
            assert values(taken) == [str(number) for number in range(len(offsets))]
            assert await log.end_offsets(topic) == {0: len(offsets)}, "no record is there twice"

    asyncio.run(scenario())


def test_while_no_broker_answers_questions_fail_and_appends_wait(own_broker: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(DEADLINE),
            KafkaLog(own_broker.bootstrap_servers, request_seconds=1.0) as log,
        ):
            await log.create_topic(topic)
            await log.append(topic, 0, b"before")
            await asyncio.to_thread(own_broker.kill)
            try:
                append = asyncio.create_task(log.append(topic, 0, b"meanwhile"))
                with pytest.raises(Unavailable):
                    await log.end_offsets(topic)
                assert not append.done()
            finally:
                await asyncio.to_thread(own_broker.restart)
            assert await append == 1
            assert values([*await log.read(topic, 0, 0, limit=1), *await log.read(topic, 0, 1)]) == [
                "before",
                "meanwhile",
            ]

    asyncio.run(scenario())


def test_an_append_that_cannot_arrive_before_the_log_is_closed_is_told(
    own_broker: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE):
            log = KafkaLog(own_broker.bootstrap_servers, request_seconds=2.0, max_in_flight_bytes=1_000)
            await log.create_topic(topic)
            await log.append(topic, 0, b"before")
            await asyncio.to_thread(own_broker.kill)
            try:
                on_its_way = asyncio.create_task(log.append(topic, 0, bytes(2_000)))
                waiting_for_room = asyncio.create_task(log.append(topic, 0, b"never sent"))
                await asyncio.sleep(0.01)
                await log.close()
                with pytest.raises(Unavailable):
                    await on_its_way
                with pytest.raises(LogClosed):
                    await waiting_for_room
            finally:
                await asyncio.to_thread(own_broker.restart)

    asyncio.run(scenario())


def test_appends_beyond_the_bound_wait_and_keep_their_order(bootstrap_servers: str, topic: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE), KafkaLog(bootstrap_servers, max_in_flight_bytes=20_000) as log:
            await log.create_topic(topic)
            appends = [asyncio.create_task(log.append(topic, 0, bytes(5_000))) for _ in range(100)]
            await asyncio.gather(*appends[:20])  # others come while some of the first still wait
            appends += [asyncio.create_task(log.append(topic, 0, bytes(5_000))) for _ in range(100)]
            cancelled = [append for index, append in enumerate(appends) if index % 7 == 3 and index > 50]
            await asyncio.sleep(0)
            for append in cancelled:
                append.cancel()
            kept = [append for append in appends if append not in cancelled]
            offsets = await asyncio.gather(*kept)
            assert offsets == sorted(set(offsets))
            assert await log.end_offsets(topic) == {0: offsets[-1] + 1}

    asyncio.run(scenario())


def test_a_position_moves_over_transaction_markers_and_aborted_records(
    bootstrap_servers: str, topic: str
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE), KafkaLog(bootstrap_servers) as log:
            await log.create_topic(topic)
            await asyncio.to_thread(write_transactions, bootstrap_servers, topic)
            end = 5  # committed, its marker, two aborted, their marker
            while (await log.end_offsets(topic))[0] < end:  # markers are written after the answer
                await asyncio.sleep(0.01)
            async with log.reader() as reader:
                await reader.subscribe(topic, 0, 0)
                seen = []
                while reader.position(topic, 0) < end:
                    seen += await reader.next()
                assert values(seen) == ["committed"]
            assert await log.read(topic, 0, 1, wait=False) == []

    asyncio.run(scenario())


def write_transactions(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"committed")
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.produce(topic, b"aborted too")
    producer.flush(30)
    producer.abort_transaction(30)


async def until_known(log: Log, topic: str) -> None:
    while True:
        try:
            await log.partitions(topic)
            return
        except UnknownTopic:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("before", [0, 1, 100])
def test_topics_recreated_under_a_steady_flow_are_never_mixed(
    bootstrap_servers: str, topic: str, before: int
) -> None:
    """As quickly as Kafka allows: delete, create, and go on writing, so that the offsets fit again.

    A reader at 0 stands within the new topic whatever happens: Kafka itself has nothing to object.
    """

    async def scenario() -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        async with asyncio.timeout(DEADLINE), KafkaLog(bootstrap_servers) as log:
            await log.create_topic(topic)
            await log.append_batch(topic, 0, entries(*["old"] * before))
            async with log.reader() as reader:
                await reader.subscribe(topic, 0, 0)
                await take(reader, before)
                await asyncio.wrap_future(admin.delete_topics([topic])[topic])
                await asyncio.wrap_future(admin.create_topics([NewTopic(topic, 1, 1)])[topic])
                async with KafkaLog(bootstrap_servers) as other:
                    await until_known(other, topic)
                    await other.append_batch(topic, 0, entries(*["new"] * 100))
                    stop = asyncio.Event()
                    appending = asyncio.create_task(append_steadily(other, topic, stop))
                    with pytest.raises(TopicRecreated):
                        while True:
                            assert set(values(await reader.next())) <= {"old"}
                    stop.set()
                    await appending

    asyncio.run(scenario())


def test_partitions_that_are_added_later_can_be_used(bootstrap_servers: str, topic: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE), KafkaLog(bootstrap_servers) as log:
            await log.create_topic(topic)
            await log.append(topic, 0, b"a")
            admin = AdminClient({"bootstrap.servers": bootstrap_servers})
            await asyncio.wrap_future(admin.create_partitions([NewPartitions(topic, 2)])[topic])
            while await log.partitions(topic) < 2:
                await asyncio.sleep(0.01)
            assert await log.append(topic, 1, b"b") == 0
            assert values(await log.read(topic, 1, 0)) == ["b"]

    asyncio.run(scenario())


def test_options_that_the_promises_depend_on_and_unknown_ones_are_refused() -> None:
    for options in ({"acks": "1"}, {"enable.idempotence": False}, {"no.such.option": "1"}):
        with pytest.raises(UsageError):
            KafkaLog("127.0.0.1:1", options=options)


def test_an_invalid_topic_name_is_refused(bootstrap_servers: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE), KafkaLog(bootstrap_servers) as log:
            with pytest.raises(LogError):
                await log.create_topic("no spaces allowed")

    asyncio.run(scenario())


def test_security_options_reach_kafka_untouched(tmp_path: Path, topic: str) -> None:
    port = free_port(0, set())
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonder land";'
    settings = {
        "listeners": f"{{}},SECURE://127.0.0.1:{port}",
        "advertised.listeners": f"{{}},SECURE://127.0.0.1:{port}",
        "listener.security.protocol.map": "{},SECURE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": login,
    }
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}

    async def scenario() -> None:
        servers = f"127.0.0.1:{port}"
        async with asyncio.timeout(DEADLINE):
            async with KafkaLog(servers, options={**options, "sasl.password": "wonder land"}) as log:
                await log.create_topic(topic)
                await log.append_batch(topic, 0, entries("secret"))
                assert values(await log.read(topic, 0, 0)) == ["secret"]
            wrong = {**options, "sasl.password": "wrong"}
            async with KafkaLog(servers, options=wrong, request_seconds=1.0) as log:
                with pytest.raises((AccessDenied, Unavailable)):
                    await log.end_offsets(topic)

    with Broker(tmp_path, settings=settings):
        asyncio.run(scenario())
