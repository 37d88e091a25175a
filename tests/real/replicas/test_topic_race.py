"""Two who create one topic at the same moment: the slower one goes on with what is there."""

import uuid

import pytest
from confluent_kafka.admin import NewTopic

from lockstep.replicas import manifest
from lockstep.replicas.topics import create_topic

pytestmark = pytest.mark.real


def test_a_topic_that_somebody_else_created_just_now_is_taken(
    bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = manifest.connect(bootstrap_servers, {})
    topic = f"race-{uuid.uuid4().hex[:8]}"
    manifest.create_heartbeat_topic(admin, topic)
    monkeypatch.setattr(manifest, "_topics", lambda *_: {})  # it was not there when the slower one looked
    manifest.create_heartbeat_topic(admin, topic)
    assert manifest.earliest(admin, topic, 1) == (0,)


def test_whoever_creates_a_topic_is_told_how_many_partitions_the_quicker_one_gave_it(
    bootstrap_servers: str,
) -> None:
    admin = manifest.connect(bootstrap_servers, {})
    topic = f"race-{uuid.uuid4().hex[:8]}"
    assert create_topic(admin, NewTopic(topic, 2)) == 2
    assert create_topic(admin, NewTopic(topic, 3)) == 2
