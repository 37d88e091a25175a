"""Promises of supervision, with real processes and stand-in sites (no Kafka, no Spark)."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lockstep import process
from lockstep.errors import LockstepError, UsageError
from lockstep.replicas import supervisor as supervision
from lockstep.replicas.layout import RunFolder, read_json, write_json
from lockstep.replicas.settings import RunSettings
from lockstep.replicas.supervisor import Supervisor

STANDIN = str(Path(__file__).with_name("standin_site.py"))


def command(run: RunFolder, site: str) -> Sequence[str]:
    return [sys.executable, STANDIN, "--run-folder", str(run.path), "--site", site]


def settings(sites: int = 2) -> RunSettings:
    return RunSettings(name="standin", pipeline_file="none.py", bootstrap_servers="none", sites=sites)


def wait(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(tmp_path / "standin")
    folder.path.mkdir()
    yield folder
    for site in (folder.path / "sites").glob("*"):
        folder.site(site.name).end(grace=0)


@pytest.fixture
def started(run: RunFolder) -> Iterator[Supervisor]:
    supervisor = Supervisor(run, settings(), command=command).start()
    supervisor.wait_running(20)
    yield supervisor
    supervisor.stop(grace=0)


def pids(supervisor: Supervisor) -> dict[str, int]:
    return {name: site["pid"] for name, site in supervisor.status()["sites"].items()}


def test_a_killed_site_comes_back_and_the_other_is_left_alone(started: Supervisor) -> None:
    before = pids(started)
    child = int((started.run.site("site-1").path / "child").read_text())
    assert started.kill("site-1") == before["site-1"]
    wait(lambda: pids(started)["site-1"] not in (None, before["site-1"]))
    started.wait_running(20)
    assert pids(started)["site-2"] == before["site-2"]
    assert not process.alive(child), "what the dead site had started must be gone before it starts again"
    assert started.status()["sites"]["site-1"]["starts"] == 2
    assert any("site-1: died (killed by signal 9)" in text for _, text in started.events)


def test_stop_leaves_no_process(started: Supervisor) -> None:
    children = [int((started.run.site(name).path / "child").read_text()) for name in started.sites]
    everyone = [*pids(started).values(), *children]
    started.stop()
    assert not [pid for pid in everyone if process.alive(pid)]
    started.stop()


def test_a_site_that_cannot_start_fails_the_run_and_says_why(run: RunFolder) -> None:
    (run.path / "refuse-site-2").touch()
    supervisor = Supervisor(run, settings(), command=command).start()
    try:
        with pytest.raises(LockstepError, match="site-2 cannot start: the pipeline is wrong") as caught:
            supervisor.wait_running(20)
        assert str(run.site("site-2").log) in caught.value.hint
    finally:
        supervisor.stop(grace=0)


def test_a_site_that_never_gets_to_run_is_given_up(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_BACKOFF_SECONDS", (0.01,))
    (run.path / "never-site-1").touch()
    supervisor = Supervisor(run, settings(1), command=command).start()
    try:
        with pytest.raises(LockstepError, match="no luck"):
            supervisor.wait_running(20)
        assert supervisor.sites["site-1"].starts == supervision._GIVE_UP_AFTER
    finally:
        supervisor.stop(grace=0)


def test_a_site_that_cannot_come_back_does_not_end_a_run_that_another_carries(started: Supervisor) -> None:
    (started.run.path / "refuse-site-1").touch()
    started.kill("site-1")
    wait(lambda: started.sites["site-1"].starts >= 3)
    started.check()
    assert started.status()["sites"]["site-1"]["last_error"] == "the pipeline is wrong"
    assert started.sites["site-2"].state == "running"


def test_a_site_runs_when_it_has_caught_up(started: Supervisor) -> None:
    behind = started.run.path / "behind-site-1"
    behind.touch()
    started.kill("site-1")
    wait(lambda: started.sites["site-1"].state == "catching up")
    started.wait_running(20, at_least=1)
    removal = threading.Timer(0.3, behind.unlink)
    removal.start()
    started.wait_running(20)
    assert not behind.exists(), "it was waited for"
    removal.join()


def test_a_site_that_is_still_catching_up_is_slow_and_no_failure(run: RunFolder) -> None:
    (run.path / "behind-site-1").touch()
    supervisor = Supervisor(run, settings(1), command=command).start()
    try:
        wait(lambda: supervisor.sites["site-1"].state == "catching up")
        supervisor.wait_running(0.1)
        wait(lambda: supervisor.sites["site-1"].ran, 5)
    finally:
        supervisor.stop(grace=0)


def test_two_runs_with_one_name_are_refused(started: Supervisor) -> None:
    with pytest.raises(LockstepError, match=f"already supervised by process {os.getpid()}"):
        Supervisor(started.run, settings(), command=command).start()
    started.check()


def test_a_site_that_does_not_exist_cannot_be_killed(started: Supervisor) -> None:
    with pytest.raises(UsageError, match="there is no site 'site-9'"):
        started.kill("site-9")


_SUPERVISOR = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_supervisor import RunFolder, Supervisor, command, settings
Supervisor(RunFolder(Path(sys.argv[1])), settings(), tied=sys.argv[2] == "tied", command=command).start()
signal.pause()
"""


def supervise_elsewhere(run: RunFolder, tied: str) -> "subprocess.Popen[bytes]":
    here = str(Path(__file__).parent)
    other = process.launch([sys.executable, "-c", _SUPERVISOR, str(run.path), tied, here])
    for site in ("site-1", "site-2"):
        wait(
            lambda site=site: run.site(site).status().get("state") == "running" and run.site(site).live_pid()
        )
    return other


def test_killing_the_supervisor_harms_no_site_and_a_new_one_adopts_them(run: RunFolder) -> None:
    first = supervise_elsewhere(run, "untied")
    before = {site: run.site(site).live_pid() for site in ("site-1", "site-2")}
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = Supervisor(run, settings(), command=command).start()
    second.wait_running(20)
    assert pids(second) == before
    assert all(site["adopted"] for site in second.status()["sites"].values())
    second.kill("site-2")  # and it looks after what it adopted
    wait(lambda: pids(second)["site-2"] not in (None, before["site-2"]))
    assert pids(second)["site-1"] == before["site-1"]
    second.stop(grace=0)
    assert not any(process.alive(pid) for pid in before.values() if pid)


def test_tied_sites_die_with_a_killed_supervisor(run: RunFolder) -> None:
    first = supervise_elsewhere(run, "tied")
    sites = [run.site(site).live_pid() or 0 for site in ("site-1", "site-2")]
    assert all(sites)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert all(process.wait_gone(pid, 5) for pid in sites)


def test_a_reused_pid_is_not_taken_for_a_site(run: RunFolder) -> None:
    folder = run.site("site-1")
    folder.note_pid(os.getpid())
    noted = read_json(folder.pid_file) or {}
    for other in ({"started": 12345}, {"boot": "another"}):
        write_json(folder.pid_file, {**noted, **other})
        assert folder.live_pid() is None
        folder.end(grace=0)
    assert process.alive(os.getpid())
    folder.note_pid(os.getpid())
    assert folder.live_pid() == os.getpid()
    folder.pid_file.unlink()


def test_settings_survive_the_way_to_a_site(run: RunFolder) -> None:
    told = RunSettings(
        name="a", pipeline_file="p.py", bootstrap_servers="b", options={"spark.x": "1", "kafka.y": "2"}
    )
    told.write(run.settings)
    assert RunSettings.read(run.settings) == told
    assert told.spark_options == {"spark.x": "1"}
    assert told.kafka_options == {"y": "2"}
    assert read_json(run.settings)
