"""Topics that a run makes for itself."""

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from lockstep.errors import LockstepError


def create_topic(admin: Any, topic: NewTopic, timeout: float = 15.0) -> int:
    """Create a topic, or take the one that somebody else created just now; how many partitions it has.

    Creation is answered by the controller, and the brokers hear of it a moment later: on return they have.
    """
    try:
        admin.create_topics([topic])[topic.topic].result(timeout)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise LockstepError(f"cannot create topic {topic.topic}: {error.args[0].str()}") from error
    deadline = time.monotonic() + timeout
    while True:
        try:
            partitions = admin.list_topics(topic.topic, timeout=timeout).topics[topic.topic].partitions
        except KafkaException as error:
            raise LockstepError(f"cannot ask for topic {topic.topic}: {error.args[0].str()}") from error
        if partitions and all(partition.leader >= 0 for partition in partitions.values()):
            return len(partitions)
        if time.monotonic() > deadline:
            raise LockstepError(
                f"topic {topic.topic} was created but has no leader yet", hint="are all brokers up?"
            )
        time.sleep(0.02)
