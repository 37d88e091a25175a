"""Sites that come late, and topics that are trimmed meanwhile, on real Kafka and Spark: outputs stay exact."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Plain
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import lockstep
from lockstep.replicas.deduplicate import Marks
from lockstep.replicas.job import Job
from lockstep.spark import identity, position

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
PIPELINES = Path(__file__).with_name("pipelines")
COLOURS = ("red", "green", "blue")
STAGES = ("-tagged", "")


def wait(condition: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


class Scene:
    """Marbles and rules for two stages; everything that the last one said, as it arrived."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.prefix = f"j{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.folder = folder / self.prefix
        self.marbles = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        new = [NewTopic(f"{self.prefix}-marbles", 2), NewTopic(f"{self.prefix}-rules", 1)]
        for future in self.admin.create_topics(new).values():
            future.result(20)
        self._colours = Plain({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
        self._assigned = False
        self.said: list[Any] = []
        self._marks: dict[int, Marks] = {}
        self.accepted: list[dict[str, Any]] = []

    def run(self, sites: int, **more: Any) -> Job:
        os.environ["LOCKSTEP_TEST_PREFIX"] = self.prefix
        return lockstep.run(
            PIPELINES / "chain.py",
            name=self.prefix,
            folder=self.folder,
            bootstrap_servers=self.bootstrap,
            sites=sites,
            batch_ms=more.pop("batch_ms", 2000),
            **more,
        )

    def write(self, count: int) -> None:
        for _ in range(count):
            colour = COLOURS[self.marbles * 5 % 3]
            self._producer.produce(f"{self.prefix}-marbles", colour, f"bag-{self.marbles % 7}")
            if self.marbles % 10 == 0:
                self._producer.produce(f"{self.prefix}-rules", f"rule-{self.marbles}")
            self.marbles += 1
        self._producer.flush()

    def read(self) -> list[dict[str, Any]]:
        """What the last stage said, first arrivals alone."""
        if not self._assigned:
            topic = f"{self.prefix}-colours"
            partitions = len(self._colours.list_topics(topic, 10).topics[topic].partitions)
            self._colours.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
            self._assigned = True
        while (message := self._colours.poll(0.05)) is not None:
            assert message.error() is None
            self.said.append(message)
            marks = self._marks.setdefault(message.partition(), Marks())
            if marks.accept(dict(message.headers())[identity.IDENTITY_HEADER]):
                self.accepted.append(json.loads(message.value()))
        return self.accepted

    def check(self) -> None:
        """Every marble was counted once, in each of the two stages: in its shard, and by its colour."""
        self.read()
        counted: Counter[str] = Counter(row["colour"] for row in self.accepted)
        assert counted == Counter(COLOURS[number * 5 % 3] for number in range(self.marbles))
        for colour, total in counted.items():
            numbers = sorted(row["n"] for row in self.accepted if row["colour"] == colour)
            assert numbers == list(range(1, total + 1))
        tagged = [json.loads(row["tagged"]) for row in self.accepted]
        inputs = Counter(row["n"] for row in tagged)
        assert max(inputs.values()) <= 2, "a number of the first stage comes once from each of its two shards"
        assert len(tagged) == self.marbles

    def differences(self) -> list[tuple[bytes, bytes]]:
        """Outputs of one identity that two sites wrote differently."""
        first: dict[tuple[int, bytes], bytes] = {}
        found = []
        for message in self.said:
            name = (message.partition(), dict(message.headers())[identity.IDENTITY_HEADER])
            if first.setdefault(name, message.value()) != message.value():
                found.append((first[name], message.value()))
        return found

    def lowest(self, site: str) -> dict[int, int]:
        """By shard, the first `_sn` of the last stage that a site wrote."""
        lowest: dict[int, int] = {}
        for message in self.said:
            headers = dict(message.headers())
            if headers[identity.SITE_HEADER] == site.encode():
                one = identity.decode(headers[identity.IDENTITY_HEADER])
                lowest[one.shard] = min(one.a, lowest.get(one.shard, one.a))
        return lowest

    def begin(self, topic: str) -> int:
        consumer = Plain({"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[0])
        finally:
            consumer.close()

    def reached(self, site: str, stage: str) -> dict[int, int]:
        found = position.committed(self.folder / "sites" / site / f"checkpoint{stage}")
        return found[1][0].upcoming if found else {}


@pytest.fixture
def scene(bootstrap_servers: str, tmp_path: Path) -> Scene:
    return Scene(bootstrap_servers, tmp_path)


def test_a_new_site_joins_at_another_ones_place_and_stands_in_for_it_though_topics_are_trimmed(
    scene: Scene,
) -> None:
    order, stage = f"{scene.prefix}.order", f"{scene.prefix}-tagged"

    def trimmed(beyond: int = 0) -> bool:
        scene.write(10)
        scene.read()
        return scene.begin(order) > beyond and scene.begin(stage) > 0

    with scene.run(sites=1, trim_seconds=0.5):
        scene.write(2000)
        wait(trimmed)
        wait(lambda: len(scene.read()) == scene.marbles)
    with scene.run(sites=2, trim_seconds=0.5) as job:
        joined = job.status()["sites"]["site-2"]["joined"]
        assert {name: one["from"] for name, one in joined.items()} == {"tagged": "site-1", "": "site-1"}
        assert sum(joined["tagged"]["begins"].values()) > 0, "it does not replay what is trimmed"
        before = scene.begin(order)
        job.kill("site-1")
        scene.write(300)
        wait(lambda: len(scene.read()) == scene.marbles)  # the new one did it
        job.wait_running()
        wait(lambda: trimmed(before))
        wait(lambda: len(scene.read()) == scene.marbles)
        wait(lambda: all(scene.reached("site-1", one) == scene.reached("site-2", one) for one in STAGES))
        assert job.status()["divergence"] is None
    begins = {int(shard): first for shard, first in joined[""]["begins"].items()}
    lowest = scene.lowest("site-2")
    assert lowest
    assert all(first >= begins[shard] > 0 for shard, first in lowest.items())
    scene.check()
    assert scene.differences() == []
    states = subprocess.run(
        [sys.executable, "-m", "lockstep", "state", str(scene.folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    )
    assert states.returncode == 0, states.stdout + states.stderr
    assert states.stdout.count("rows of state are equal") == 2, states.stdout


def test_leaders_that_start_on_a_trimmed_order_topic_go_on(bootstrap_servers: str, tmp_path: Path) -> None:
    prefix = os.environ["LOCKSTEP_TEST_PREFIX"] = f"j{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(f"{prefix}-{one}", 1) for one in ("left", "right")]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    written = 0
    taken: list[dict[str, Any]] = []

    def write(count: int) -> None:
        nonlocal written
        for _ in range(count):
            producer.produce(f"{prefix}-{('left', 'right')[written % 3 == 0]}", str(written))
            written += 1
        producer.flush()

    job = lockstep.run(
        PIPELINES / "pair.py",
        name=prefix,
        folder=tmp_path / prefix,
        bootstrap_servers=bootstrap_servers,
        sites=1,
        order="kazoo",
        batch_ms=1000,
        trim_seconds=0.5,
    )
    with job, job.consumer() as consumer:

        def read() -> int:
            taken.extend(json.loads(record.value or b"") for record in consumer.records(0.1))
            return len(taken)

        def trimmed() -> bool:
            write(10)
            read()
            return bool(job.status()["others"]["trimmer"].get("trimmed"))

        wait(trimmed)
        for leader in ("leader-1", "leader-2"):
            os.kill(job.pid(leader) or 0, signal.SIGKILL)
        write(100)
        wait(lambda: read() == written)
    assert sorted(row["n"] for row in taken) == list(range(1, written + 1))
    queues = Counter((row["taken"]["topic"], row["taken"]["offset"]) for row in taken)
    assert set(queues.values()) == {1}
