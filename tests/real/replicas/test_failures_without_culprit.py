"""A record that fails where nobody has it in hand: nothing is skipped, nothing is lost, and the user is told."""

import os
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from test_sites import PIPELINES, read, wait

import lockstep
from lockstep.replicas.job import Job
from lockstep.replicas.record import OutputRecord

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
COUNT = 300
POISON = 120


@pytest.fixture(scope="module")
def prefix(bootstrap_servers: str) -> str:
    """The prefix of a topic of numbers, one of which is none: not the last that a bundle holds."""
    name = f"f{uuid.uuid4().hex[:8]}"
    topic = f"{name}-numbers"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(COUNT):
        producer.produce(topic, b"poison" if number == POISON else b"%d" % number, b"key")
    producer.flush()
    os.environ["LOCKSTEP_TEST_PREFIX"] = name
    return name


def start(prefix: str, bootstrap: str, folder: Path, file: str) -> Job:
    return lockstep.run(
        f"{PIPELINES}/{file}",
        name=f"{prefix}-{uuid.uuid4().hex[:4]}",
        folder=folder / file.replace(":", "-"),
        bootstrap_servers=bootstrap,
        sites=1,
        wait=False,
        batch_ms=2000,
    )


def fail_twice(job: Job, bootstrap: str) -> str:
    """Until the site failed so often that a culprit would have been skipped; what the user was told."""
    wait(lambda: any("again and again" in text for _, text in job.events()), 90)
    told = [text for _, text in job.events()]
    assert not [text for text in told if "skipped, kept in" in text], told
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    assert f"{job.name}.dead-letters" not in topics
    return next(text for text in told if "again and again" in text)


def test_behind_a_shuffle_outputs_before_it_are_there_and_the_reason_is_told(
    prefix: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    with start(prefix, bootstrap_servers, tmp_path, "latest.py") as job:
        told = fail_twice(job, bootstrap_servers)
        assert job.engine()[0] == "realtime"
        assert "CAST_INVALID_INPUT" in told
        assert "nothing is skipped" in told
        assert "CAST_INVALID_INPUT" in job.status()["sites"]["site-1"]["last_error"]
        records: list[OutputRecord] = []
        with job.consumer() as consumer:
            read(consumer, records, POISON, seconds=30)
        assert {r.sn: r.value for r in records} == {n: b"%d" % (2 * n) for n in range(POISON)}


def test_in_a_python_udf_no_innocent_record_is_skipped_and_a_corrected_pipeline_gets_all(
    prefix: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    with start(prefix, bootstrap_servers, tmp_path, "parsed.py:strict") as job:
        told = fail_twice(job, bootstrap_servers)
        assert "ValueError: invalid literal for int() with base 10: 'poison'" in told
    with start(prefix, bootstrap_servers, tmp_path, "parsed.py:lenient") as job:
        records: list[OutputRecord] = []
        with job.consumer() as consumer:
            read(consumer, records, COUNT)
        due = [b"?" if number == POISON else b"%d" % (2 * number) for number in range(COUNT)]
        assert sorted(record.value or b"" for record in records) == sorted(due)
