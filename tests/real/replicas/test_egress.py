"""Promises of the egress on a real broker: the clean topic holds every output once, whoever is killed where."""

import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from standin import outputs

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.replicas.egress import EgressSettings, prepare_topics
from lockstep.replicas.egress_state import read_state

pytestmark = pytest.mark.real
PARTITIONS = 2
INPUTS = 1500

Start = Callable[..., "subprocess.Popen[bytes]"]


class Scene:
    """One run of stand-in sites and egresses over topics of its own."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.folder = folder
        self.name = f"egress-{uuid.uuid4().hex[:8]}"
        self.clean = f"{topic}.clean"
        self.seed = random.randrange(1 << 30)
        self.started: list[subprocess.Popen[bytes]] = []

    def egress(self, crash: str = "") -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "lockstep.replicas.egress", "--bootstrap-servers", self.bootstrap]
        command += ["--source", self.topic, "--clean", self.clean, "--name", self.name]
        command += ["--status", str(self.folder / f"egress-{len(self.started)}.json")]
        log = self.folder / f"egress-{len(self.started)}.log"
        return self._launch(command, log, {"LOCKSTEP_CRASH": crash})

    def site(self, name: str, pause: float = 0.0) -> "subprocess.Popen[bytes]":
        script = str(Path(__file__).with_name("standin.py"))
        checkpoint = str(self.folder / f"{name}.checkpoint")
        command = [sys.executable, script, self.bootstrap, self.topic, str(PARTITIONS), name]
        command += [str(self.seed), str(INPUTS), checkpoint, str(pause)]
        return self._launch(command, self.folder / f"{name}.log", {})

    def _launch(self, command: list[str], log: Path, env: dict[str, str]) -> "subprocess.Popen[bytes]":
        self.started.append(process.launch(command, log=log, env=env))
        return self.started[-1]

    def due(self) -> list[tuple[int, bytes, bytes]]:
        return [
            (partition, key, value) for partition, key, value, _ in outputs(self.seed, INPUTS, PARTITIONS)
        ]

    def clean_records(self, at_least: int, deadline: float = 60.0) -> list[tuple[int, bytes, bytes]]:
        """What a consumer that knows nothing of us sees, plus whatever more comes in a short while."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "stranger"})
        consumer.assign([TopicPartition(self.clean, p, 0) for p in range(PARTITIONS)])
        ends = time.monotonic() + deadline
        records = []
        while time.monotonic() < ends:
            message = consumer.poll(0.3)
            if message is not None and message.error() is None:
                records.append((message.partition(), message.key(), message.value()))
            elif message is None and len(records) >= at_least:
                break
        consumer.close()
        return records


@pytest.fixture
def scene(bootstrap_servers: str, new_topic: Callable[..., str], tmp_path: Path) -> Iterator[Scene]:
    made = Scene(bootstrap_servers, new_topic(PARTITIONS), tmp_path)
    yield made
    for started in made.started:
        process.kill(started)


@pytest.mark.parametrize(
    "crash",
    ["egress.after-fence:1", "egress.between-produces:3", "egress.before-commit:4", "egress.after-commit:3"],
)
def test_an_egress_killed_at_a_named_point_loses_and_repeats_nothing(scene: Scene, crash: str) -> None:
    sites = [scene.site("site-1", pause=0.001), scene.site("site-2", pause=0.001)]
    first = scene.egress(crash=crash)
    assert first.wait(30) == -signal.SIGKILL, "the egress never got to the named point"
    second = scene.egress(crash=crash.partition(":")[0])
    assert second.wait(30) == -signal.SIGKILL
    sites[0].kill()  # a site dies in the middle too, and comes back
    sites[0].wait()
    scene.site("site-1")
    scene.egress()
    assert sorted(scene.clean_records(len(scene.due()))) == sorted(scene.due())


def test_a_new_egress_takes_over_from_a_running_one(scene: Scene) -> None:
    scene.site("site-1", pause=0.002)
    scene.site("site-2", pause=0.002)
    first = scene.egress()
    _wait(lambda: _written(scene.folder / "egress-2.json") > 50)
    second = scene.egress()
    _wait(lambda: _state(scene.folder / "egress-3.json") == "running")
    scene.site("site-3")  # the others may be done: what it repeats gives the old egress something to commit
    assert first.wait(30) == 3, "the old egress must end by itself, fenced"
    assert sorted(scene.clean_records(len(scene.due()))) == sorted(scene.due())
    second.terminate()
    assert second.wait(20) == 0


def test_sigterm_ends_it_and_a_restart_reads_nothing_twice(scene: Scene) -> None:
    site = scene.site("site-1")
    first = scene.egress()
    assert len(scene.clean_records(len(scene.due()))) == len(scene.due())
    site.wait(10)
    first.terminate()
    assert first.wait(20) == 0
    settings = EgressSettings(scene.bootstrap, scene.topic, scene.clean, scene.name)
    positions = []
    for partition in range(PARTITIONS):
        state = read_state(settings.connection, settings.state_topic, scene.topic, partition)
        assert state is not None
        positions.append(state.next_offset)
    assert sum(positions) == len(scene.due())
    scene.egress()
    _wait(lambda: _state(scene.folder / "egress-2.json") == "running")
    assert len(scene.clean_records(len(scene.due()))) == len(scene.due())


def test_state_of_another_topic_is_refused(
    bootstrap_servers: str, new_topic: Callable[..., str], scene: Scene
) -> None:
    scene.site("site-1")
    scene.egress()
    assert scene.clean_records(len(scene.due()))
    with pytest.raises(LockstepError, match="belongs to an egress of"):
        read_state({"bootstrap.servers": bootstrap_servers}, f"{scene.name}.egress", "other", 0)


def test_a_clean_topic_with_other_partitions_is_refused(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    source, clean = new_topic(3), new_topic(2)
    with pytest.raises(LockstepError, match="has 2 partitions"):
        prepare_topics(EgressSettings(bootstrap_servers, source, clean, "misfit"))
    with pytest.raises(LockstepError, match="there is no topic nowhere"):
        prepare_topics(EgressSettings(bootstrap_servers, "nowhere", clean, "misfit"))


def test_the_check_catches_an_egress_without_marks(scene: Scene) -> None:
    """Planted bug: everything is passed on as it comes."""
    admin = AdminClient({"bootstrap.servers": scene.bootstrap})
    admin.create_topics([NewTopic(scene.clean, PARTITIONS)])[scene.clean].result(20)
    producer = Producer({"bootstrap.servers": scene.bootstrap})
    for _site in range(2):
        for partition, key, value in scene.due():
            producer.produce(scene.clean, value, key, partition=partition)
    producer.flush()
    assert sorted(scene.clean_records(len(scene.due()))) != sorted(scene.due())


def _state(status: Path) -> str:
    try:
        return str(json.loads(status.read_text())["state"])
    except (OSError, ValueError):
        return ""


def _written(status: Path) -> int:
    try:
        return int(json.loads(status.read_text())["written"])
    except (OSError, ValueError):
        return 0


def _wait(condition: Callable[[], bool], deadline: float = 30.0) -> None:
    ends = time.monotonic() + deadline
    while True:
        try:
            if condition():
                return
        except (OSError, ValueError):
            pass
        assert time.monotonic() < ends
        time.sleep(0.02)
