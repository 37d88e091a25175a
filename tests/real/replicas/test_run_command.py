"""Promises of `lockstep run` and `lockstep stop` as processes: who dies with whom."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.replicas.layout import RunFolder
from lockstep.replicas.manifest import OutputTopic, refuse_used_output
from lockstep.spark.identity import REALTIME, Identity, encode

pytestmark = pytest.mark.real
PIPELINE = str(Path(__file__).with_name("pipelines") / "counts.py")


def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Command:
    """`lockstep run` with an embedded broker and one site, up to where the site's JVM starts."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.run = RunFolder(folder / "run")
        self.log = folder / "command.log"
        arguments = ["run", PIPELINE, "--sites", "1", "--folder", str(self.run.path), "--name", "mine", *more]
        self.process = process.launch([sys.executable, "-m", "lockstep", *arguments], log=self.log)
        wait(lambda: self.process.poll() is not None or self._java_children())
        assert self.process.poll() is None, self.log.read_text()

    def _java_children(self) -> list[int]:
        site = self.run.site("site-1").live_pid()
        return [c.pid for c in psutil.Process(site).children() if "java" in c.name()] if site else []

    def everything(self) -> list[int]:
        """The broker and the site, each with its JVM. A JVM has short-lived children of its own, such as chmod."""
        found = []
        for folder in (self.run.broker, self.run.site("site-1")):
            pid = folder.live_pid()
            assert pid is not None
            children = psutil.Process(pid).children(recursive=True)
            found += [pid, *(child.pid for child in children if _is_java(child))]
        assert len(found) == 4, "broker and site, each with a JVM"
        return found

    def lockstep(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "lockstep", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    run = RunFolder(tmp_path / "run")
    for one in (run.site("site-1"), run.egress, run.digest(), run.broker):
        one.end(grace=0)


def _is_java(child: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "java" in child.name()
    return False


def gone(pids: list[int]) -> bool:
    return all(process.wait_gone(pid, 15) for pid in pids)


def test_ctrl_c_ends_everything(folder: Path) -> None:
    command = Command(folder)
    pids = command.everything()
    os.kill(command.process.pid, signal.SIGINT)
    assert command.process.wait(40) == 130
    assert gone(pids)
    assert "Traceback" not in command.log.read_text()


def test_a_killed_command_leaves_a_run_that_can_be_stopped(folder: Path) -> None:
    command = Command(folder)
    pids = command.everything()
    second = command.lockstep("run", PIPELINE, "--folder", str(command.run.path), "--name", "mine")
    assert second.returncode == 1
    assert "already supervised by process" in second.stderr
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    assert all(process.alive(pid) for pid in pids), "killing the supervisor harms nothing"
    stopped = command.lockstep("stop", "mine", "--folder", str(command.run.path))
    assert stopped.returncode == 0, stopped.stderr
    assert "site-1" in stopped.stdout
    assert "broker" in stopped.stdout
    assert gone(pids)


def test_tied_processes_die_with_a_killed_command(folder: Path) -> None:
    command = Command(folder, "--tied")
    pids = command.everything()
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    assert gone(pids)


def test_stop_asks_a_living_supervisor(folder: Path) -> None:
    command = Command(folder)
    pids = command.everything()
    stopped = command.lockstep("stop", "mine", "--folder", str(command.run.path))
    assert stopped.returncode == 0, stopped.stderr
    assert command.process.wait(20) == 130
    assert gone(pids)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "nowhere.py"], 2, "there is no file"),
        (["run", PIPELINE, "--sites", "0"], 2, "1 to 16 sites"),
        (["run", PIPELINE, "--engine", "warp"], 2, "no engine is called"),
        (["run", PIPELINE, "--order", "chaos"], 2, "no order is called 'chaos'"),
        (["run", PIPELINE, "--set", "nonsense"], 2, "is not an option"),
        (["run", PIPELINE, "--name", "a/b"], 2, "cannot name a run"),
        (
            ["run", PIPELINE, "--bootstrap-servers", "127.0.0.1:1"],
            1,
            "no Kafka broker answers at 127.0.0.1:1",
        ),
        (["stop", "nobody"], 2, "there is no run called nobody"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstep", *arguments]
    environment = {**os.environ, "LOCKSTEP_HOME": str(tmp_path)}
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=tmp_path
    )
    assert told.returncode == code, told.stderr
    assert message in told.stderr
    assert "Traceback" not in told.stderr


def test_a_missing_input_topic_is_told(bootstrap_servers: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstep", "run", PIPELINE, "--bootstrap-servers", bootstrap_servers]
    environment = {**os.environ, "LOCKSTEP_TEST_PREFIX": "absent", "LOCKSTEP_HOME": str(tmp_path)}
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert told.returncode == 1
    assert "there is no topic absent-events" in told.stderr


def test_an_output_topic_of_another_run_is_refused(
    bootstrap_servers: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    refuse_used_output(bootstrap_servers, {}, OutputTopic(topic, 2))
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"somebody else's", partition=0)
    producer.flush()
    refuse_used_output(bootstrap_servers, {}, OutputTopic(topic, 2))
    producer.produce(topic, b"ours", partition=1, headers=[("ls", encode(Identity(REALTIME, 0, 0, 0, 0)))])
    producer.flush()
    with pytest.raises(LockstepError, match="holds outputs of another run"):
        refuse_used_output(bootstrap_servers, {}, OutputTopic(topic, 2))
