"""A run on the shared broker for the tests here, and what a reader of its output topic sees."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lockstep.spark import engine, identity
from lockstep.spark.pipeline import Pipeline

PARTITIONS = 2


@dataclass(frozen=True)
class Output:
    partition: int
    identity: identity.Identity
    site: str
    key: bytes | None
    value: bytes


class Bench:
    """A run on the shared broker: its topics, its sites, what they wrote."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder
        self.name = f"run-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._producer = self._new_producer()
        self.queries: list[StreamingQuery] = []

    def topic(self, name: str, partitions: int = PARTITIONS, **config: str) -> str:
        topic = f"{self.name}.{name}"
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
            future.result(10)
        return topic

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(10)
        wait(lambda: len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions) == partitions)
        self._producer = self._new_producer()  # one that knows the topic looks for new ones only now and then

    def _new_producer(self) -> Producer:
        return Producer(
            {"bootstrap.servers": self.bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 0}
        )

    def produce(self, topic: str, records: Sequence[tuple[str | None, str]], partition: int = -1) -> None:
        for key, value in records:
            self._producer.produce(topic, key=key, value=value, partition=partition)
        assert self._producer.flush(10) == 0

    def takes(self, topic: str, value: str) -> bool:
        """Whether the broker takes such a record; if so, it is written."""
        refused: list[KafkaError] = []
        self._producer.produce(
            topic, value=value, on_delivery=lambda error, _: refused.append(error) if error else None
        )
        assert self._producer.flush(10) == 0
        assert all(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in refused)
        return not refused

    def produce_bytes(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value=value)
        assert self._producer.flush(10) == 0

    def end(self, topic: str, partition: int = 0) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": self.name})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)[1])
        finally:
            consumer.close()

    def configure(self, topic: str, **config: str) -> None:
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(10)

    def truncate(self, topic: str, offset: int) -> None:
        """As retention does: remove what is before `offset`, in every partition that reaches it."""
        ends = {partition: self.end(topic, partition) for partition in range(PARTITIONS)}
        cuts = [TopicPartition(topic, partition, offset) for partition, end in ends.items() if end >= offset]
        assert cuts
        for future in self.admin.delete_records(cuts).values():
            future.result(10)

    def recreate(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(10)
        wait(lambda: topic not in self.admin.list_topics(timeout=10).topics)
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(10)

    def progress(self) -> engine.Progress:
        return engine.progress(self.spark, round(time.time() * 1000))

    def settings(self, pipeline: Pipeline, site: str, **changes: Any) -> engine.EngineSettings:
        given: dict[str, Any] = {
            "engine": "realtime",
            "bootstrap_servers": self.bootstrap_servers,
            "checkpoint": self.folder / site / "checkpoint",
            "site": site,
            "output_partitions": PARTITIONS,
            "input_partitions": dict.fromkeys(pipeline.inputs, PARTITIONS),
            "seals": f"{self.name}.seals",
            "batch_ms": 2000 if changes.get("engine", "realtime") == "realtime" else 300,
        }
        return engine.EngineSettings(**{**given, **changes})

    def start(self, pipeline: Pipeline, site: str, **changes: Any) -> StreamingQuery:
        query = engine.start(self.spark, pipeline, self.settings(pipeline, site, **changes))
        self.queries.append(query)
        return query

    def outputs(self, topic: str, until: Callable[[list[Output]], bool], seconds: float = 60) -> list[Output]:
        """What the topic holds, once it satisfies `until`. A query that fails ends the wait."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": self.name})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found: list[Output] = []
        try:
            deadline = time.monotonic() + seconds
            while not until(found):
                for query in self.queries:
                    if (error := query.exception()) is not None:
                        raise engine.failure(error, self.spark)
                assert time.monotonic() < deadline, f"waited in vain; {len(found)} outputs, last {found[-3:]}"
                found += [_output(message) for message in consumer.consume(1000, 0.05)]
            return found
        finally:
            consumer.close()

    def failure(self, query: StreamingQuery, seconds: float = 60) -> str:
        """What a person reads of a query that is to fail."""
        wait(lambda: not query.isActive, seconds)
        error = query.exception()
        assert error is not None
        return str(engine.failure(error, self.spark))

    def close(self) -> None:
        for query in self.queries:
            query.stop()


def wait(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def accepted(outputs: Sequence[Output]) -> list[Output]:
    """What a reader keeps who deduplicates by the marks alone."""
    marks: dict[tuple[int, int, int], tuple[int, int]] = {}
    kept = []
    for output in outputs:
        sequence = (output.partition, *output.identity.sequence)
        if output.identity.mark > marks.get(sequence, (-1, -1)):
            marks[sequence] = output.identity.mark
            kept.append(output)
    return kept


def by_identity(outputs: Sequence[Output], site: str) -> Mapping[tuple[int, identity.Identity], bytes]:
    """One site's outputs; fails if it gave one identity to two different records."""
    found: dict[tuple[int, identity.Identity], bytes] = {}
    for output in outputs:
        if output.site == site:
            known = found.setdefault((output.partition, output.identity), output.value)
            assert known == output.value, (output, known)
    return found


def _output(message: Message) -> Output:
    assert message.error() is None, message.error()
    found = identity.of_headers(message.headers())
    assert found is not None
    assert message.partition() == identity.output_partition(message.key(), found, PARTITIONS)
    site = identity.site_of_headers(message.headers()) or ""
    return Output(message.partition(), found, site, message.key(), message.value())
