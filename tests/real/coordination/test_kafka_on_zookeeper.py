"""Kafka 3.9.1, the last line that needs ZooKeeper, unchanged, on our ensemble (RT-ZooKeeper, section 7)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lockstep import process
from lockstep.coordination.ensemble import Ensemble
from lockstep.ports import free_ports
from lockstep.setup import jars, java

pytestmark = pytest.mark.real


@pytest.fixture
def kafka(ensemble: Ensemble, tmp_path: Path) -> Iterator[str]:
    """One broker; its bootstrap address."""
    runtime = java.find()
    if jars.missing("kafka-zookeeper"):
        jars.fetch("kafka-zookeeper", java=runtime)
    (port,) = free_ports(1)
    settings = {
        "broker.id": 1,
        "zookeeper.connect": ensemble.connect_string + "/kafka",
        "zookeeper.session.timeout.ms": 5000,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": tmp_path / "kafka-logs",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "num.network.threads": 1,
        "num.io.threads": 2,
    }
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    classpath = os.pathsep.join(map(str, jars.classpath("kafka-zookeeper")))
    command = [str(runtime.java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath]
    broker = process.launch([*command, "kafka.Kafka", str(properties)], log=tmp_path / "kafka.log")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill(broker)


def test_a_broker_lives_through_the_death_of_our_leader(
    ensemble: Ensemble, kafka: str, wait_until: Callable[..., None]
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})

    def there(topic: str) -> bool:
        try:
            return topic in admin.list_topics(timeout=2).topics
        except Exception:
            return False

    def create(topic: str) -> None:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(timeout=30)
        wait_until(lambda: there(topic), f"{topic} is there", seconds=30)

    def broker_is_up() -> bool:
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except Exception:
            return False

    wait_until(broker_is_up, "the broker answers", seconds=90)
    create("before")
    leader = ensemble.wait_leader()
    ensemble.kill(leader)
    create("after")
    ensemble.start_server(leader)
    ensemble.wait_serving(leader)

    producer = Producer({"bootstrap.servers": kafka})
    for number in range(20):
        producer.produce("after", b"%d" % number)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["after"])
    got: set[bytes] = set()

    def read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            got.add(message.value())
        return len(got) == 20

    wait_until(read, "everything arrives", seconds=60)
    consumer.close()
