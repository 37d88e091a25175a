"""The pinned jars: fetched by the real Ivy from a repository on this machine, and never half."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from setup_fakes import MavenRepository

from lockstep import home, process
from lockstep.errors import LockstepError, UsageError
from lockstep.setup import ivy, jars, java

TWO_JARS = (ivy.Module("org.example", "first", "1.0"), ivy.Module("org.example", "second", "2.0"))


@pytest.fixture
def pinned(
    own_home: Path, repository: MavenRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The set `spark` is two small jars of the repository; returns the lock file that says so."""
    lock = tmp_path / "jars.lock"
    files = {
        "first-1.0.jar": repository.add("first", "1.0", "one"),
        "second-2.0.jar": repository.add("second", "2.0", "two"),
    }
    lock.write_text(json.dumps({"spark": files}))
    monkeypatch.setattr(jars, "SETS", {"spark": TWO_JARS})
    monkeypatch.setattr(jars, "_LOCK", lock)
    return lock


def fetch() -> None:
    jars.fetch("spark", java=java.find())


def entries(folder: str) -> list[str]:
    """What is kept in a folder of the home, hidden leftovers included."""
    return sorted(path.name for path in (home.home() / folder).iterdir())


def names() -> list[str]:
    return sorted(path.name for path in home.jars_folder("spark").glob("*.jar"))


@pytest.mark.usefixtures("pinned")
def test_a_fetched_set_is_a_classpath_and_leaves_nothing_else_behind() -> None:
    arrived: list[int] = []
    jars.fetch("spark", java=java.find(), progress=arrived.append)
    assert [path.name for path in jars.classpath("spark")] == ["first-1.0.jar", "second-2.0.jar"]
    assert all(path.is_file() for path in jars.classpath("spark"))
    assert jars.verify("spark") == ""
    assert arrived[-1] == 2
    assert entries("jars") == ["spark"]
    assert entries("ivy") == []


@pytest.mark.usefixtures("pinned")
def test_a_set_that_was_never_fetched_says_what_to_run() -> None:
    with pytest.raises(LockstepError) as caught:
        jars.classpath("spark")
    assert caught.value.hint == "run: lockstep setup"


def test_a_set_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no set of jars"):
        jars.classpath("flink")


@pytest.mark.usefixtures("pinned")
def test_a_second_fetch_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch()
    monkeypatch.setenv("LOCKSTEP_MAVEN_MIRROR", "http://127.0.0.1:1/")
    fetch()
    assert jars.missing("spark") == ""


@pytest.mark.usefixtures("pinned")
def test_a_folder_without_a_stamp_is_not_taken_for_a_good_one(repository: MavenRepository) -> None:
    folder = home.jars_folder("spark")
    folder.mkdir(parents=True)
    (folder / "first-1.0.jar").write_bytes(repository.jar("first", "1.0").read_bytes())
    assert "never completed" in jars.missing("spark")
    fetch()
    assert names() == ["first-1.0.jar", "second-2.0.jar"]


@pytest.mark.usefixtures("pinned")
def test_a_changed_jar_is_noticed_cheaply_and_fetched_again() -> None:
    fetch()
    damaged = jars.classpath("spark")[0]
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(LockstepError, match=r"first-1\.0\.jar changed since it was verified"):
        jars.classpath("spark")
    fetch()
    assert jars.verify("spark") == ""


@pytest.mark.usefixtures("pinned")
def test_a_jar_that_rotted_in_place_is_found_by_reading_it_and_then_fetched_again() -> None:
    fetch()
    damaged = jars.classpath("spark")[1]
    status = damaged.stat()
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert jars.missing("spark") == ""  # by size and time alone it cannot be seen
    assert "second-2.0.jar is corrupt" in jars.verify("spark")
    fetch()
    assert jars.verify("spark") == ""


@pytest.mark.usefixtures("pinned")
def test_a_touched_jar_is_read_again_but_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch()
    os.utime(jars.classpath("spark")[0])
    assert jars.missing("spark")
    monkeypatch.setenv("LOCKSTEP_MAVEN_MIRROR", "http://127.0.0.1:1/")
    fetch()
    assert jars.missing("spark") == ""


@pytest.mark.usefixtures("pinned")
def test_a_repository_that_serves_another_jar_is_refused_and_nothing_is_kept(
    repository: MavenRepository,
) -> None:
    good = repository.jar("second", "2.0").read_bytes()
    repository.jar("second", "2.0").write_bytes(good + b"more")
    with pytest.raises(LockstepError, match=r"second-2\.0\.jar is corrupt"):
        fetch()
    assert jars.missing("spark")
    assert entries("jars") == []
    repository.jar("second", "2.0").write_bytes(good)
    fetch()
    assert jars.verify("spark") == ""


def test_other_pins_make_the_old_jars_useless(pinned: Path, repository: MavenRepository) -> None:
    fetch()
    lock = json.loads(pinned.read_text())
    lock["spark"]["first-1.0.jar"] = "0" * 64
    pinned.write_text(json.dumps(lock))
    assert jars.missing("spark") == "the lock file names other versions"
    with pytest.raises(LockstepError, match=r"first-1\.0\.jar is corrupt"):
        fetch()


@pytest.mark.usefixtures("pinned")
def test_a_jar_that_no_pin_asked_for_is_refused(pinned: Path) -> None:
    lock = json.loads(pinned.read_text())
    del lock["spark"]["second-2.0.jar"]
    pinned.write_text(json.dumps(lock))
    with pytest.raises(LockstepError, match="is not in the lock file"):
        fetch()


@pytest.mark.usefixtures("pinned")
def test_an_unreachable_repository_is_one_line_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_MAVEN_MIRROR", "http://127.0.0.1:1/")
    with pytest.raises(LockstepError) as caught:
        fetch()
    assert "could not download jars" in caught.value.message
    assert "\n" not in caught.value.message
    assert "LOCKSTEP_MAVEN_MIRROR" in caught.value.hint


def test_relocking_writes_what_the_pins_resolve_to(pinned: Path) -> None:
    before = pinned.read_text()
    pinned.write_text("{}")
    jars.relock("spark", java=java.find())
    assert json.loads(pinned.read_text()) == json.loads(before)
    assert jars.verify("spark") == ""


def test_every_set_is_locked_and_no_jar_of_the_broker_is_on_sparks_classpath() -> None:
    for name in jars.SETS:
        assert jars.locked(name), name
        assert all(len(checksum) == 64 for checksum in jars.locked(name).values())
    assert home.jars_folder("spark") != home.jars_folder("kafka")


class _Stalling(SimpleHTTPRequestHandler):
    """Sends half of the second jar, says so, and then nothing more until the test is over."""

    repository: MavenRepository
    half_sent: threading.Event
    go_on: threading.Event
    asked: list[str]

    def do_GET(self) -> None:
        path = self.repository.root / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        self.asked.append(path.name)
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if path.name == "second-2.0.jar" and not self.go_on.is_set():
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.half_sent.set()
            self.go_on.wait(60)
            return
        self.wfile.write(content)

    def do_HEAD(self) -> None:
        path = self.repository.root / self.path.lstrip("/")
        self.send_response(200 if path.is_file() else 404)
        if path.is_file():
            self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stalling(repository: MavenRepository, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Stalling]]:
    class Handler(_Stalling):
        half_sent = threading.Event()
        go_on = threading.Event()
        asked: ClassVar[list[str]] = []

    Handler.repository = repository
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("LOCKSTEP_MAVEN_MIRROR", f"http://127.0.0.1:{server.server_port}")
    yield Handler
    Handler.go_on.set()
    server.shutdown()
    server.server_close()


_FETCH_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from lockstep.setup import ivy, jars, java
jars.SETS = {"spark": (ivy.Module("org.example", "first", "1.0"), ivy.Module("org.example", "second", "2.0"))}
jars._LOCK = Path(sys.argv[1])
jars.fetch("spark", java=java.find())
"""


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_download_is_never_taken_for_a_good_one(
    pinned: Path, stalling: type[_Stalling], deadly: signal.Signals
) -> None:
    fetching = subprocess.Popen(
        [sys.executable, "-c", _FETCH_IN_ANOTHER_PROCESS, str(pinned)], stderr=subprocess.DEVNULL
    )
    assert stalling.half_sent.wait(30)
    downloading = _children(fetching.pid)
    assert downloading
    fetching.send_signal(deadly)
    fetching.wait(10)
    assert all(process.wait_gone(pid, 5) for pid in downloading)
    assert jars.missing("spark")
    assert names() == []
    stalling.go_on.set()
    fetch()
    assert jars.verify("spark") == ""
    assert entries("jars") == ["spark"]


def test_two_fetches_at_once_do_the_work_once(pinned: Path, stalling: type[_Stalling]) -> None:
    stalling.go_on.set()
    command = [sys.executable, "-c", _FETCH_IN_ANOTHER_PROCESS, str(pinned)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert stalling.asked.count("first-1.0.jar") == 1
    assert jars.verify("spark") == ""


def _children(pid: int) -> list[int]:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        if found:
            return found
        time.sleep(0.01)
    return []
