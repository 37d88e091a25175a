"""Where a reader's marks go when they outgrow the metadata of a Kafka offset commit.

Metadata begins with `ls1:` and holds the marks themselves, or with `ls1@` and names one record of the
compacted topic `lockstep.marks`. Every record has a key that is used once, so compaction never removes one
that a commit still refers to; it is deleted by a tombstone once a later commit replaced it.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lockstep.errors import LockstepError
from lockstep.replicas.deduplicate import Marks

TOPIC = "lockstep.marks"
_INLINE = "ls1:"
_REFERENCE = "ls1@"


class MarksTopic:
    """Connects only when marks are large enough to need it."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any], timeout: float = 15.0) -> None:
        self._settings = {**_connection(options), "bootstrap.servers": bootstrap_servers}
        self._timeout = timeout
        self._producer: Any = None

    @staticmethod
    def inline(marks: Marks) -> str:
        return _INLINE + marks.to_text()

    def store(self, owner: str, marks: Marks) -> str:
        """Write the marks and return the reference, once they are durable."""
        if self._producer is None:
            _create(self._settings, self._timeout)
            self._producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 0})
        key = f"{owner}/{uuid.uuid4().hex}"
        outcome: list[tuple[Any, Any]] = []
        self._producer.produce(
            TOPIC, marks.encode(), key, partition=0, on_delivery=lambda error, m: outcome.append((error, m))
        )
        self._producer.flush(self._timeout)
        if not outcome or outcome[0][0] is not None:
            raise LockstepError(f"cannot write marks to {TOPIC}", hint="is the broker up, and is it allowed?")
        return f"{_REFERENCE}{outcome[0][1].offset()}:{key}"

    def resolve(self, text: str) -> Marks:
        """The marks that committed metadata holds or refers to."""
        if text.startswith(_INLINE):
            return Marks.from_text(text[len(_INLINE) :])
        if not text.startswith(_REFERENCE):
            raise LockstepError("the group's commits are not Lockstep's", hint="choose a group of its own")
        offset, _, key = text[len(_REFERENCE) :].partition(":")
        if not offset.isdigit():
            raise LockstepError("committed marks are damaged", hint="they were written elsewhere")
        return self._read(int(offset), key)

    def forget(self, text: str) -> None:
        """Delete the record that `text` refers to: a later commit has replaced it."""
        if text.startswith(_REFERENCE) and self._producer is not None:
            self._producer.produce(TOPIC, None, text.partition(":")[2], partition=0)
            self._producer.poll(0)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(self._timeout)

    def _read(self, offset: int, key: str) -> Marks:
        consumer = Consumer(
            {**self._settings, "group.id": TOPIC, "enable.auto.commit": False, "auto.offset.reset": "error"}
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, offset)])
            message = consumer.poll(self._timeout)
        finally:
            consumer.close()
        if message is None or message.error() is not None or message.key() != key.encode():
            raise LockstepError(
                f"the committed marks are missing from {TOPIC}",
                hint="was the topic deleted? choose a new group",
            )
        return Marks.decode(message.value() or b"")


def _connection(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a consumer's options that say how to reach and trust the broker."""
    prefixes = ("security.", "sasl.", "ssl.", "enable.ssl.", "client.", "broker.")
    return {name: value for name, value in options.items() if name.startswith(prefixes)}


def _create(settings: Mapping[str, Any], timeout: float) -> None:
    admin = AdminClient(dict(settings))
    topic = NewTopic(TOPIC, num_partitions=1, config={"cleanup.policy": "compact"})
    try:
        admin.create_topics([topic], operation_timeout=timeout)[TOPIC].result(timeout)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise LockstepError(f"cannot create {TOPIC}: {error.args[0].str()}") from error
