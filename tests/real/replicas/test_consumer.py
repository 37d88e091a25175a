"""Promises of `lockstep.Consumer` on a real broker: every output once, through restarts and rebalances."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer as Plain
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from standin import outputs

from lockstep.errors import LockstepError, UsageError
from lockstep.replicas import consumer as consumer_module
from lockstep.replicas.consumer import Consumer
from lockstep.spark.identity import REALTIME, Identity, encode

pytestmark = pytest.mark.real
PARTITIONS = 3


def write(
    bootstrap: str, topic: str, seed: int, inputs: int = 600, part: slice = slice(None)
) -> list[tuple[int, bytes]]:
    """Two sites and a late one write it all, interleaved at random; returns what is due."""
    due = outputs(seed, inputs, PARTITIONS)[part]
    choose = random.Random(seed)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    at = {"site-1": 0, "site-2": 0, "site-3": 0}
    while any(position < len(due) for position in at.values()):
        site = choose.choice([s for s, position in at.items() if position < len(due)])
        for partition, key, value, identity in due[at[site] : at[site] + 20]:
            producer.produce(
                topic, value, key, partition=partition, headers=[("ls", identity), ("lss", site.encode())]
            )
        at[site] += 20
        if choose.random() < 0.1:  # a crash: some of it comes again
            at[site] = max(0, at[site] - choose.randrange(150))
    producer.flush()
    return [(partition, identity) for partition, _, _, identity in due]


def seen(records: list[consumer_module.OutputRecord]) -> list[tuple[int, bytes]]:
    return [(record.partition, encode(record.identity)) for record in records]


def drain(consumer: Consumer, count: int, deadline: float = 30.0) -> list[consumer_module.OutputRecord]:
    ends = time.monotonic() + deadline
    records: list[consumer_module.OutputRecord] = []
    while len(records) < count:
        assert time.monotonic() < ends, f"{len(records)} of {count} within {deadline} s"
        record = consumer.poll(0.2)
        if record is not None:
            records.append(record)
    return records


def test_every_output_comes_once_and_says_where_it_is_from(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(PARTITIONS)
    due = write(bootstrap_servers, topic, seed=1)
    with Consumer(bootstrap_servers, topic) as consumer:
        records = drain(consumer, len(due))
        assert consumer.poll(0.3) is None
        assert consumer.duplicates >= 2 * len(due)
    assert sorted(seen(records)) == sorted(due)
    assert {record.site for record in records} <= {"site-1", "site-2", "site-3"}
    assert all(r.value == b"%d/%d/%d of %s" % (r.shard, r.sn, r.k, r.key) for r in records)


@pytest.mark.parametrize("inline_limit", [4000, 0])
def test_a_restart_neither_loses_nor_repeats(
    bootstrap_servers: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    inline_limit: int,
) -> None:
    """With marks in the commit's metadata, and (limit 0) in the marks topic."""
    monkeypatch.setattr(consumer_module, "_INLINE_LIMIT", inline_limit)
    topic = new_topic(PARTITIONS)
    due = write(bootstrap_servers, topic, seed=2)
    choose = random.Random(3)
    kept: list[tuple[int, bytes]] = []
    while len(kept) < len(due):
        with Consumer(bootstrap_servers, topic, "restarting", commit_interval=None) as consumer:
            kept += seen(drain(consumer, min(len(due) - len(kept), choose.randrange(1, 300))))
            consumer.commit()
            for _ in range(choose.randrange(50)):  # read on and "crash": never committed, so never kept
                consumer.poll(0.01)
    assert sorted(kept) == sorted(due)
    with Consumer(bootstrap_servers, topic, "restarting") as consumer:
        assert consumer.poll(1.0) is None


def test_a_rebalance_neither_loses_nor_repeats(bootstrap_servers: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(PARTITIONS)
    due = write(bootstrap_servers, topic, seed=4, part=slice(None, 300))
    first = Consumer(bootstrap_servers, topic, "sharing", commit_interval=0.01)
    kept = seen(drain(first, 100))
    second = Consumer(bootstrap_servers, topic, "sharing", commit_interval=0.01)
    consumers = [first, second]

    def read_until(reached: Callable[[], object]) -> None:
        ends = time.monotonic() + 40
        while not reached():
            assert time.monotonic() < ends
            for consumer in consumers:
                record = consumer.poll(0.02)
                if record is not None:
                    kept.extend(seen([record]))

    read_until(lambda: second.assigned)
    due += write(bootstrap_servers, topic, seed=4, part=slice(300, None))
    read_until(lambda: len(kept) >= len(due) - 100)
    assert second.assigned, "both read"
    consumers.remove(second)
    second.close()  # it leaves in the middle
    read_until(lambda: len(first.assigned) == PARTITIONS and len(kept) >= len(due))
    first.close()
    assert sorted(kept) == sorted(due)


_READER = """
import os, sys
from lockstep.replicas.consumer import Consumer
consumer = Consumer(sys.argv[1], sys.argv[2], "killed", commit_interval=0.02,
                    options={"session.timeout.ms": 6000})
with open(sys.argv[3], "ab", buffering=0) as out:
    for record in consumer:
        out.write(b"%d %s\\n" % (record.partition, record.value))
"""


def test_kill_9_of_the_reader_loses_nothing(
    bootstrap_servers: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    write(bootstrap_servers, topic, seed=5, inputs=3000)
    due = {b"%d %s" % (p, value) for p, _, value, _ in outputs(5, 3000, PARTITIONS)}
    read = tmp_path / "read"
    ends = time.monotonic() + 60
    kills = 0
    while not read.exists() or set(read.read_bytes().splitlines()) != due:
        assert time.monotonic() < ends
        reader = subprocess.Popen([sys.executable, "-c", _READER, bootstrap_servers, topic, str(read)])
        size = read.stat().st_size if read.exists() else 0
        while time.monotonic() < ends and kills < 1:  # let it get on, then kill it in the middle
            if read.exists() and read.stat().st_size > size:
                break
            time.sleep(0.005)
        while kills >= 1 and time.monotonic() < ends and set(read.read_bytes().splitlines()) != due:
            time.sleep(0.05)
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        kills += 1
    assert kills >= 1


def test_latest_learns_the_marks_of_what_it_passes_over(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    """A lagging site's old outputs, written after we joined, are no news."""
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap_servers})

    def produce(sn: int, site: bytes) -> None:
        headers = [("ls", encode(Identity(REALTIME, 0, 0, sn, 0))), ("lss", site)]
        producer.produce(topic, b"%d" % sn, headers=headers, partition=0)

    for sn in range(10):
        produce(sn, b"site-1")
    producer.flush()
    with Consumer(bootstrap_servers, topic, start="latest") as consumer:
        for sn in range(12):
            produce(sn, b"site-2")
        producer.flush()
        assert [record.sn for record in drain(consumer, 2)] == [10, 11]
        assert consumer.poll(0.3) is None


def test_records_that_no_site_wrote_are_passed_over(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"stranger")
    producer.produce(topic, b"stranger", headers=[("ls", b"\x01short")])
    producer.produce(topic, b"ours", headers=[("x", b""), ("ls", encode(Identity(REALTIME, 0, 0, 0, 0)))])
    producer.flush()
    with Consumer(bootstrap_servers, topic) as consumer:
        assert [record.value for record in drain(consumer, 1)] == [b"ours"]
        assert consumer.foreign == 2


def test_a_missing_topic_or_broker_is_a_clear_error(bootstrap_servers: str) -> None:
    with pytest.raises(LockstepError, match="there is no topic nowhere"):
        Consumer(bootstrap_servers, "nowhere")
    with pytest.raises(LockstepError, match="no Kafka broker answers"):
        Consumer("127.0.0.1:1", "nowhere", timeout=0.3)
    with pytest.raises(UsageError, match="not a place to start"):
        Consumer(bootstrap_servers, "nowhere", start="middle")  # type: ignore[arg-type]


def test_a_group_of_another_kind_of_consumer_is_refused(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    write_one = Producer({"bootstrap.servers": bootstrap_servers})
    write_one.produce(topic, b"x")
    write_one.flush()
    plain = Plain({"bootstrap.servers": bootstrap_servers, "group.id": "plain"})
    plain.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    plain.close()
    mistaken = pytest.raises(LockstepError, match="without marks")
    with Consumer(bootstrap_servers, topic, "plain") as consumer, mistaken:
        drain(consumer, 1)


def test_outputs_that_retention_removed_unread_are_a_clear_error(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for sn in range(20):
        producer.produce(topic, b"x", headers=[("ls", encode(Identity(REALTIME, 0, 0, sn, 0)))])
    producer.flush()
    with Consumer(bootstrap_servers, topic, "late") as consumer:
        drain(consumer, 5)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    place = TopicPartition(topic, 0, 15)
    admin.delete_records([place])[place].result(20)
    gone = pytest.raises(LockstepError, match="no longer in the topic")
    with Consumer(bootstrap_servers, topic, "late") as consumer, gone:
        drain(consumer, 1)
