"""What an egress knows of one output partition, kept as records of a compacted topic.

The state (next offset and marks) is written inside the transaction that writes the outputs it accounts for:
a reader with `read_committed` sees both or neither. Offsets sent with the consumer group API would do the
same at a hundred milliseconds a transaction; a record costs nothing extra (design facts).

The topic has as many partitions as the output topic. With fewer, the open transaction of one partition's
egress would hide the committed state of another's.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lockstep.errors import LockstepError
from lockstep.replicas.deduplicate import Marks

_VERSION = 1
_FIRST_LOOK = 16


class EgressState(msgspec.Struct, frozen=True, array_like=True):
    version: int
    source: str
    next_offset: int
    marks: bytes

    @classmethod
    def of(cls, source: str, next_offset: int, marks: Marks) -> "EgressState":
        return cls(_VERSION, source, next_offset, marks.encode())

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def read_state(
    settings: Mapping[str, Any], topic: str, source: str, partition: int, timeout: float = 15.0
) -> EgressState | None:
    """The last committed state. Call it after `init_transactions`: then no older egress can add to it."""
    consumer = Consumer(
        {
            **settings,
            "group.id": f"{topic}.reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout)
        look_back = _FIRST_LOOK
        while True:  # markers and aborted records are not state: look further back until there is one
            start = max(low, high - look_back)
            found = _last_from(consumer, TopicPartition(topic, partition, start), timeout)
            if found is not None:
                return _decode(found, topic, source)
            if start <= low:
                return None
            look_back *= 16
    except KafkaException as error:
        raise LockstepError(
            f"cannot read {topic}: {error.args[0].str()}", hint="is the broker up?"
        ) from error
    finally:
        consumer.close()


def _last_from(consumer: Any, place: TopicPartition, timeout: float) -> bytes | None:
    consumer.assign([place])
    last: bytes | None = None
    while True:
        message = consumer.poll(timeout)
        if message is None:
            raise LockstepError(f"{place.topic} does not answer", hint="is the broker up?")
        if message.error() is None:
            last = message.value()
        elif message.error().code() == KafkaError._PARTITION_EOF:
            return last
        elif message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise LockstepError(f"{place.topic} lost its state records", hint="its policy must be compact")


def _decode(value: bytes, topic: str, source: str) -> EgressState:
    try:
        state = msgspec.msgpack.decode(value, type=EgressState)
    except msgspec.DecodeError as error:
        raise LockstepError(f"{topic} holds records that no egress wrote") from error
    if state.version != _VERSION or state.source != source:
        raise LockstepError(
            f"{topic} belongs to an egress of {state.source} (version {state.version})",
            hint="give this egress a name of its own",
        )
    return state
