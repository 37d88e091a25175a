"""Promises of a run on real Kafka and Spark: a killed site is not noticed, and a new supervisor takes over."""

import json
import os
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Plain
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import lockstep
from lockstep import process
from lockstep.errors import LockstepError
from lockstep.replicas import phase
from lockstep.replicas.consumer import Consumer
from lockstep.replicas.job import Job
from lockstep.replicas.record import OutputRecord

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
PIPELINES = Path(__file__).with_name("pipelines")
KEYS = 20


def wait(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Scene:
    """One input topic, what was written to it, and what must come out."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.prefix = f"t{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.folder = folder
        self.written = 0
        os.environ["LOCKSTEP_TEST_PREFIX"] = self.prefix
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        topic = f"{self.prefix}-events"
        self.admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._counts: dict[str, int] = defaultdict(int)
        self.due: dict[int, dict[str, object]] = {}

    def write(self, count: int, pause: float = 0.001) -> None:
        for _ in range(count):
            key = f"key-{self.written * 7 % KEYS}"
            self._counts[key] += 1
            self.due[self.written] = {"k": key, "n": self._counts[key]}
            self._producer.produce(f"{self.prefix}-events", b"x", key)
            self._producer.poll(0)
            self.written += 1
            time.sleep(pause)
        self._producer.flush()


@pytest.fixture(scope="module")
def scene(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(bootstrap_servers, tmp_path_factory.mktemp("runs"))


def start(scene: Scene, **more: object) -> Job:
    return lockstep.run(
        PIPELINES / "counts.py",
        name=f"{scene.prefix}-run",
        folder=scene.folder / "counts",
        bootstrap_servers=scene.bootstrap,
        batch_ms=6000,
        clean=f"{scene.prefix}-clean",
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def running(scene: Scene) -> Iterator[dict[str, Job]]:
    """The one run of this file; a test that hands it over to another supervisor replaces the job."""
    holder = {"job": start(scene, detach=True)}
    yield holder
    holder["job"].stop()


def read(consumer: Consumer, records: list[OutputRecord], until: int, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while len(records) < until:
        assert time.monotonic() < deadline, f"{len(records)} of {until} outputs"
        records += consumer.records(0.2)
    records += consumer.records(0.3)


def check(scene: Scene, records: list[OutputRecord]) -> None:
    """Every input caused exactly one output, the right one."""
    assert len(records) == scene.written
    assert {record.sn: json.loads(record.value or b"") for record in records} == scene.due


def at_the_next(job: Job, site: str, pattern: str) -> None:
    """Return the moment a new file appears in the site's checkpoint: a step of Spark's commit is done."""
    checkpoint = job.folder / "sites" / site / "checkpoint"
    before = set(checkpoint.glob(pattern))
    deadline = time.monotonic() + 60
    while not {path for path in checkpoint.glob(pattern) if not path.name.startswith(".")} - before:
        assert time.monotonic() < deadline, f"no new {pattern}"
        time.sleep(0.002)


def test_kills_of_sites_are_not_noticed(scene: Scene, running: dict[str, Job]) -> None:
    job = running["job"]
    assert job.engine()[0] == "realtime"
    records: list[OutputRecord] = []
    with job.consumer() as consumer:
        scene.write(1000)
        job.kill("site-1")  # between two produces
        scene.write(500)
        wait(lambda: job.status()["sites"]["site-1"]["state"] == "starting")
        job.kill("site-1")  # during its start
        scene.write(500)
        read(consumer, records, 2000)
        job.wait_running()
        jvm = job.status()["sites"]["site-2"]["jvm_pid"]
        scene.write(300)
        at_the_next(job, "site-2", "state/0/*/*.changelog")  # its state is committed, its batch is not
        os.kill(jvm, 9)  # only the JVM: the driver must notice and die too
        scene.write(300)
        read(consumer, records, 2600)
        job.wait_running()
        driver = job.status()["sites"]["site-1"]["pid"]
        scene.write(300)
        at_the_next(job, "site-1", "commits/*")  # its batch is committed
        os.kill(driver, 9)  # only the driver: its JVM must not write into the checkpoint any more
        scene.write(300)
        read(consumer, records, 3200)
        job.wait_running()
        assert consumer.duplicates > 0, "both sites wrote"
    check(scene, records)
    assert job.status()["sites"]["site-1"]["starts"] >= 4
    assert job.status()["divergence"] is None


def test_a_new_supervisor_adopts_running_sites(scene: Scene, running: dict[str, Job]) -> None:
    job = running["job"].wait_running()
    with pytest.raises(LockstepError, match="already supervised"):
        start(scene)
    before = {name: site["pid"] for name, site in job.status()["sites"].items()}
    job.release()
    scene.write(100)  # nobody supervises: outputs flow
    running["job"] = job = start(scene, detach=True)
    assert {name: site["pid"] for name, site in job.status()["sites"].items()} == before
    records: list[OutputRecord] = []
    with job.consumer() as consumer:
        read(consumer, records, scene.written)
    check(scene, records)


def test_the_clean_topic_holds_every_output_once(scene: Scene, running: dict[str, Job]) -> None:
    clean = running["job"].clean or ""
    plain = Plain({"bootstrap.servers": scene.bootstrap, "group.id": "stranger"})
    plain.assign([TopicPartition(clean, 0, 0)])
    values = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = plain.poll(1.0)
        if message is not None and message.error() is None:
            values.append(json.loads(message.value()))
        elif message is None and len(values) >= scene.written:
            break
    plain.close()
    assert sorted(values, key=str) == sorted(scene.due.values(), key=str)


def test_sites_were_compared(running: dict[str, Job]) -> None:
    digest = running["job"].status()["others"]["digest"]
    assert digest["divergence"] is None
    wait(lambda: running["job"].status()["others"]["digest"].get("compared", 0) > 0)


def test_a_site_tells_how_long_its_last_boundary_took(running: dict[str, Job]) -> None:
    wait(lambda: (running["job"].status()["sites"]["site-2"].get("boundary_ms") or 0) > 0)


def test_boundaries_that_fall_together_are_moved_apart_without_a_new_process(
    scene: Scene, running: dict[str, Job]
) -> None:
    job = running["job"].wait_running()
    before = job.status()["sites"]

    def site(name: str) -> dict[str, Any]:
        return dict(job.status()["sites"][name])

    def let_boundaries_meet() -> None:
        """Freeze a site past its batch's end, and wake it when the other one's batch ends."""
        jvm = before["site-2"]["jvm_pid"]
        os.kill(jvm, signal.SIGSTOP)
        try:
            began = site("site-1")["batch_id"]
            wait(lambda: site("site-1")["batch_id"] > began)
            time.sleep(max(0.0, site("site-1")["boundary"] + 6.0 - time.time()))
        finally:
            os.kill(jvm, signal.SIGCONT)

    def moved() -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not site("site-2").get("moves"):
            time.sleep(0.1)
        return bool(site("site-2").get("moves"))

    for _ in range(5):  # a busy machine may miss the moment
        let_boundaries_meet()
        if moved():
            break
    assert moved()
    scene.write(500)

    def apart() -> bool:
        """A move that was aimed badly is followed by another."""
        sites = job.status()["sites"]
        known = [site["boundary"] * 1000 for site in sites.values() if site["state"] == "running"]
        return len(known) == 2 and phase.distance(*known, 6000) > phase.GUARD_MS

    wait(apart)
    after = job.status()["sites"]
    assert {name: (site["pid"], site["jvm_pid"]) for name, site in after.items()} == {
        name: (site["pid"], site["jvm_pid"]) for name, site in before.items()
    }
    assert not after["site-1"].get("moves"), "the other one stays"
    assert 0 < after["site-2"]["move_ms"] < 6000, "shorter than a batch"
    records: list[OutputRecord] = []
    with job.consumer() as consumer:
        read(consumer, records, scene.written)
    check(scene, records)


def test_stopping_leaves_nothing_and_the_run_can_go_on_later(scene: Scene, running: dict[str, Job]) -> None:
    job = running["job"]
    status = job.status()
    pids = [pid for site in status["sites"].values() for pid in (site["pid"], site["jvm_pid"])]
    job.stop()
    assert not [pid for pid in pids if pid and process.alive(pid)]
    scene.write(100)
    running["job"] = job = start(scene, detach=True)
    records: list[OutputRecord] = []
    with job.consumer() as consumer:
        read(consumer, records, scene.written)
    check(scene, records)
    job.stop()


def test_partitions_added_to_the_output_are_refused(scene: Scene, running: dict[str, Job]) -> None:
    running["job"].stop()
    topic = f"{scene.prefix}-counts"
    scene.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    wait(lambda: len(scene.admin.list_topics(topic, timeout=5).topics[topic].partitions) == 2, 20)
    with pytest.raises(LockstepError, match=r"has 2 partitions; run .* froze them at 1"):
        start(scene)


def test_sites_that_differ_are_found_and_stopped(scene: Scene) -> None:
    job = lockstep.run(
        PIPELINES / "random_numbers.py",
        name=f"{scene.prefix}-random",
        folder=scene.folder / "random",
        bootstrap_servers=scene.bootstrap,
        batch_ms=6000,
        allow=["rand"],
        on_divergence="stop",
        wait=False,  # it may be found before the second site has caught up
    )
    with job:
        wait(lambda: job.status()["failure"])
        with pytest.raises(LockstepError, match=r"sites diverge at shard 0, _sn 0: site-1 wrote key='key-0'"):
            job.check()
        pids = [site["pid"] for site in job.status()["sites"].values()]
        assert pids == [None, None], "policy stop"


def test_a_poison_record_is_skipped_by_all_and_kept_with_the_reason(scene: Scene) -> None:
    topic = f"{scene.prefix}-numbers"
    scene.admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": scene.bootstrap})
    for number in range(100):
        producer.produce(topic, b"poison" if number == 50 else b"%d" % number, b"key")
    producer.flush()
    name = f"{scene.prefix}-poisoned"
    job = lockstep.run(
        PIPELINES / "doubled.py",
        name=name,
        folder=scene.folder / "doubled",
        bootstrap_servers=scene.bootstrap,
        batch_ms=6000,
        wait=False,
    )
    with job, job.consumer() as consumer:
        records: list[OutputRecord] = []
        read(consumer, records, 99, seconds=180)
        assert {r.sn: r.value for r in records} == {n: b"%d" % (2 * n) for n in range(100) if n != 50}
        letters = Plain({"bootstrap.servers": scene.bootstrap, "group.id": "reader"})
        letters.assign([TopicPartition(f"{name}.dead-letters", 0, 0)])
        letter = letters.poll(20)
        letters.close()
        assert letter is not None
        assert letter.value() == b"poison"
        told = dict(letter.headers())
        assert (told["lockstep.offset"], told["lockstep.topic"]) == (b"50", topic.encode())
        assert b"CAST_INVALID_INPUT" in told["lockstep.reason"]
        assert job.status()["divergence"] is None


def test_a_python_udf_runs_in_micro_batches_and_a_kill_is_not_noticed(scene: Scene) -> None:
    topic = f"{scene.prefix}-whispers"
    scene.admin.create_topics([NewTopic(topic, 2)])[topic].result(20)
    producer = Producer({"bootstrap.servers": scene.bootstrap, "linger.ms": 1})
    written = 0

    def write(count: int) -> None:
        nonlocal written
        for _ in range(count):
            producer.produce(topic, b"word-%d" % written, b"key-%d" % (written % 7))
            producer.poll(0)
            written += 1
            time.sleep(0.001)
        producer.flush()

    job = lockstep.run(
        PIPELINES / "shout.py",
        name=f"{scene.prefix}-shout",
        folder=scene.folder / "shout",
        bootstrap_servers=scene.bootstrap,
        output_partitions=2,
    )
    with job, job.consumer() as consumer:
        engine, why = job.engine()
        assert engine == "microbatch"
        assert why
        records: list[OutputRecord] = []
        write(1000)
        job.kill("site-2")
        write(1000)
        read(consumer, records, 2000)
        job.wait_running()
        write(500)
        job.kill("site-1")  # now only the site that was restarted is left
        write(500)
        read(consumer, records, 3000)
        assert sorted(r.value or b"" for r in records) == sorted(b"WORD-%d" % n for n in range(3000))
        assert {record.engine for record in records} == {"microbatch"}
        assert job.status()["divergence"] is None
