"""Pipelines that merge topics and that have stages, on real Kafka and Spark, judged by the Python merge.

The judge reads the order topic and the inputs on its own and replays them; the outputs of the run, deduplicated,
must be exactly that, whatever was killed on the way.
"""

import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Plain
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import lockstep
from lockstep.errors import UsageError
from lockstep.order import inband
from lockstep.order.merge import Input, Merge
from lockstep.order.records import Queue, decode
from lockstep.replicas.deduplicate import Marks
from lockstep.replicas.job import Job
from lockstep.replicas.manifest import watermarks
from lockstep.spark.identity import IDENTITY_HEADER

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
PIPELINES = Path(__file__).with_name("pipelines")


class Scene:
    """A prefix for all topics of one run, a producer, and everything that any topic holds."""

    def __init__(self, bootstrap: str, folder: Path, topics: dict[str, int]) -> None:
        self.prefix = f"o{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.folder = folder
        self.written: Counter[str] = Counter()
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        new = [NewTopic(f"{self.prefix}-{name}", count) for name, count in topics.items()]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics(new).values():
            future.result(20)

    def run(self, file: str, **more: Any) -> Job:
        os.environ["LOCKSTEP_TEST_PREFIX"] = self.prefix
        return lockstep.run(
            PIPELINES / file,
            name=self.prefix,
            folder=self.folder / self.prefix,
            bootstrap_servers=self.bootstrap,
            batch_ms=more.pop("batch_ms", 6000),
            **more,
        )

    def write(self, topic: str, key: str | None, value: str, partition: int = -1) -> None:
        self._producer.produce(f"{self.prefix}-{topic}", value, key, partition=partition)
        self._producer.flush()
        self.written[topic] += 1

    def records(self, topic: str) -> list[Any]:
        """Everything in the topic, partition by partition in log order."""
        consumer = Plain({"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex})
        try:
            found = []
            for partition in range(len(consumer.list_topics(topic, 10).topics[topic].partitions)):
                low, high = watermarks(consumer, TopicPartition(topic, partition), 30)
                consumer.assign([TopicPartition(topic, partition, low)])
                while low < high:
                    message = consumer.poll(10)
                    assert message is not None and message.error() is None
                    found.append(message)
                    low = message.offset() + 1
            return found
        finally:
            consumer.close()

    def accepted(self, topic: str) -> list[Any]:
        """The records of a topic that sites write to, first arrivals alone."""
        marks: dict[int, Marks] = {}
        return [
            message
            for message in self.records(topic)
            if marks.setdefault(message.partition(), Marks()).accept(dict(message.headers())[IDENTITY_HEADER])
        ]

    def grow(self, topic: str, partitions: int) -> None:
        name = f"{self.prefix}-{topic}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(20)
        wait(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == partitions)
        # A producer that has sent to the topic looks for new partitions only now and then.
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})

    def order(self, shard: int, queues: int, growing: frozenset[Queue] = frozenset()) -> list[Input]:
        """What the Python merge makes of the run's order topic."""
        merge = Merge((0,) * queues, growing)
        for message in self.records(f"{self.prefix}.order"):
            if message.partition() == shard:
                merge.follow(message.offset(), decode(message.value()))
        return merge.take(1_000_000)


def wait(condition: Any, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def kill(job: Job, name: str) -> None:
    pid = job.pid(name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def chain(bootstrap_servers: str, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(bootstrap_servers, tmp_path, {"marbles": 2, "rules": 1})


def play(scene: Scene, first: int, count: int) -> None:
    for number in range(first, first + count):
        scene.write("marbles", f"bag-{number % 7}", ("red", "green", "blue")[number * 5 % 3])
        if number % 10 == 0:
            scene.write("rules", None, f"rule-{number}")


def tags(scene: Scene) -> list[dict[str, Any]]:
    """What the first stage must say, shard by shard."""
    marbles = {
        (m.partition(), m.offset()): m.value().decode() for m in scene.records(f"{scene.prefix}-marbles")
    }
    rules = [m.value().decode() for m in scene.records(f"{scene.prefix}-rules")]
    due = []
    for shard in range(2):
        rule = None
        for one in scene.order(shard, queues=2):
            if one.queue == 1:
                rule = rules[one.offset]
            else:
                due.append({"colour": marbles[shard, one.offset], "n": one.sn + 1, "rule": rule})
    return due


def as_rows(messages: list[Any]) -> list[str]:
    return sorted(json.dumps(json.loads(m.value()), sort_keys=True) for m in messages)


def test_stages_say_what_the_order_says_though_sites_and_generators_die(chain: Scene) -> None:
    with chain.run("chain.py", sites=2) as job:
        assert {name for name in job.status()["others"] if "generator" in name} == {
            "generator-1",
            "generator-2",
        }
        play(chain, 0, 60)
        kill(job, "generator-1")
        play(chain, 60, 60)
        job.kill("site-1")
        play(chain, 120, 80)
        wait(lambda: len(chain.accepted(f"{chain.prefix}-colours")) == 200)
        wait(lambda: job.status()["sites"]["site-1"]["state"] == "running")
        play(chain, 200, 20)
        wait(lambda: len(chain.accepted(f"{chain.prefix}-colours")) == 220)
        assert job.status()["divergence"] is None
    due = sorted(json.dumps(row, sort_keys=True) for row in tags(chain))
    tagged = chain.accepted(f"{chain.prefix}-tagged")
    assert as_rows(tagged) == due
    counts: Counter[tuple[int, str]] = Counter()
    expected = []
    for message in tagged:  # the second stage counts in log order, each colour in its partition
        colour = message.key().decode()
        counts[message.partition(), colour] += 1
        n = counts[message.partition(), colour]
        expected.append(
            json.dumps({"colour": colour, "n": n, "tagged": message.value().decode()}, sort_keys=True)
        )
    assert as_rows(chain.accepted(f"{chain.prefix}-colours")) == sorted(expected)


def test_stages_in_micro_batches_count_every_input_once(chain: Scene) -> None:
    with chain.run("chain.py", sites=2, engine="microbatch", batch_ms=500) as job:
        play(chain, 0, 40)
        wait(lambda: chain.records(f"{chain.prefix}-colours"))
        job.kill("site-2")
        play(chain, 40, 40)

        def counted() -> bool:
            """Whether everything that was written was tagged, and everything that was tagged was counted."""
            tagged = chain.accepted(f"{chain.prefix}-tagged")
            taken = max((json.loads(m.value())["n"] for m in tagged), default=0)
            latest = {m.key(): json.loads(m.value())["n"] for m in chain.accepted(f"{chain.prefix}-colours")}
            orders = [chain.order(shard, queues=2) for shard in range(2)]
            written = chain.written["marbles"] + 2 * chain.written["rules"]
            ordered = sum(map(len, orders)) == written
            return ordered and taken == max(map(len, orders)) and sum(latest.values()) == len(tagged)

        # A micro-batch answers once for each shard: what the second stage counts is what the first one said.
        wait(lambda: job.status()["sites"]["site-2"]["state"] == "running")
        wait(counted)
        assert job.status()["divergence"] is None


def test_a_killed_leader_is_replaced_and_the_order_goes_on(bootstrap_servers: str, tmp_path: Path) -> None:
    scene = Scene(bootstrap_servers, tmp_path, {"left": 1, "right": 1})
    with scene.run("pair.py", sites=2, order="kazoo") as job:
        for number in range(100):
            scene.write(("left", "right")[number % 3 == 0], "k", str(number))
            if number == 50:
                kill(job, "leader-1")
                kill(job, "leader-2")  # both: whoever comes back first leads
        wait(lambda: len(scene.accepted(f"{scene.prefix}-pairs")) == 100)
        assert job.status()["divergence"] is None
    taken = [json.loads(m.value()) for m in scene.accepted(f"{scene.prefix}-pairs")]
    found = {row["n"] - 1: (row["taken"]["topic"].endswith("right"), row["taken"]["offset"]) for row in taken}
    assert found == {one.sn: (one.queue == 1, one.offset) for one in scene.order(0, queues=2)}


def in_band(scene: Scene, topics: list[str]) -> list[tuple[str, int]]:
    """The events of stage topics as the Python merge takes them, the first of each: topic and offset."""
    merge = inband.InBandMerge([inband.QueuePosition(0, inband.Numbers())] * len(topics))
    records = [scene.records(topic) for topic in topics]
    for queue, messages in enumerate(records):
        events = 0
        for message in messages:
            if message.headers():  # what a site writes twice takes two turns
                merge.arrive(queue, message.offset(), inband.Event(events, b"%d" % message.offset()))
                events += 1
            else:
                merge.arrive(queue, message.offset(), inband.decode(message.value()))
    marks = [Marks() for _ in topics]
    found = []
    while (taken := merge.take()) is not None:
        queue, item = taken
        if isinstance(item, inband.Event):
            message = records[queue][int(item.value)]
            if marks[queue].accept(dict(message.headers())[IDENTITY_HEADER]):
                found.append((topics[queue], message.offset()))
    return found


def test_heartbeats_among_the_events_order_stage_topics_though_sites_and_hearts_die(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    scene = Scene(bootstrap_servers, tmp_path, {"left": 1, "right": 1})
    with scene.run("diamond.py", sites=2, order="inband") as job:
        assert job.status()["order"] == "inband"
        assert {name for name in job.status()["others"] if "heart" in name} == {"heart-1", "heart-2"}
        for number in range(200):
            scene.write(("left", "right")[number % 3 == 0], "k", str(number))
            if number == 50:
                kill(job, "heart-1")
            if number == 100:
                job.kill("site-1")
        wait(lambda: len(scene.accepted(f"{scene.prefix}-pairs")) == 200)
        wait(lambda: job.status()["sites"]["site-1"]["state"] == "running")
        for number in range(20):
            scene.write(("left", "right")[number % 2], "k", str(number))
        wait(lambda: len(scene.accepted(f"{scene.prefix}-pairs")) == 220)
        assert job.status()["divergence"] is None
    rows = sorted(
        (json.loads(m.value()) for m in scene.accepted(f"{scene.prefix}-pairs")), key=lambda r: r["n"]
    )
    said = [(row["taken"]["topic"], row["taken"]["offset"]) for row in rows]
    assert said == in_band(scene, [f"{scene.prefix}-lefts", f"{scene.prefix}-rights"])


def test_partitions_that_are_added_to_an_input_are_read_by_the_run_and_after_its_restart(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    scene = Scene(bootstrap_servers, tmp_path, {"left": 1, "right": 1})
    output = f"{scene.prefix}-pairs"

    def write(first: int, count: int, *right: int) -> None:
        for number in range(first, first + count):
            scene.write("left", "k", str(number), 0)
            for partition in right:
                scene.write("right", "k", str(number), partition)

    def taken() -> list[dict[str, Any]]:
        return [json.loads(m.value()) for m in scene.accepted(output)]

    with scene.run("pair.py", sites=2) as job:
        write(0, 20, 0)
        wait(lambda: len(taken()) == 40)
        scene.grow("right", 3)
        write(20, 20, 0, 1, 2)
        wait(lambda: len(taken()) == 120)
        job.kill("site-1")
        kill(job, "generator-1")
        write(40, 20, 0, 1, 2)
        wait(lambda: len(taken()) == 200)
        wait(lambda: job.status()["sites"]["site-1"]["state"] == "running")
        assert job.status()["divergence"] is None
    with scene.run("pair.py", sites=2) as job:  # the whole run, with what was added
        write(60, 10, 2, 1)
        wait(lambda: len(taken()) == 230)
        assert job.status()["divergence"] is None
    growing = frozenset({(f"{scene.prefix}-left", 0), (f"{scene.prefix}-right", 0)})
    due = scene.order(0, 2, growing)
    assert len(due) == 230
    rows = taken()
    assert [row["n"] for row in rows] == list(range(1, 231)), "each once, none repeated"
    offsets = {one.sn: (one.queue != 0, one.offset) for one in due}
    assert {
        row["n"] - 1: (row["taken"]["topic"].endswith("right"), row["taken"]["offset"]) for row in rows
    } == offsets


def test_what_cannot_be_merged_is_refused_before_anything_starts(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    scene = Scene(bootstrap_servers, tmp_path, {"left": 1, "right": 2})
    with pytest.raises(UsageError, match="equally many partitions"):
        scene.run("pair.py")
    with pytest.raises(UsageError, match="no order among themselves"):
        scene.run("pair.py", order="partition")
