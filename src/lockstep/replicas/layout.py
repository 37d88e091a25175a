"""Where a run keeps its things: the one place that knows the names in a run folder.

<run>/lock                  held (flock) by the one supervisor
<run>/run.json              what every site is started with
<run>/manifest.json         what is frozen for the life of the run
<run>/engine.json           the engine that the first site to get there chose, and why
<run>/broker/               the embedded broker, if the run has one
<run>/sites/site-1/         pid, status.json, site.log, checkpoint/; copied.json if it began with a copy
<run>/orders/generator-1/   what makes the order, if the run has one of its own; what trims it
<run>/readers.json          who reads which of the run's own topics
<run>/egress/ , <run>/digest/
"""

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep import process
from lockstep.errors import LockstepError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


def check_name(name: str) -> str:
    """A run's name becomes part of topic names and paths."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a run",
            hint="letters, digits, dot, dash and underscore, at most 81 of them",
        )
    return name


def seals_topic(run: str) -> str:
    """The run's topic of origin, seals and skips."""
    return f"{run}.seals"


def order_topic(run: str) -> str:
    """The run's order topic: one partition for each shard of each input of each stage, in this order."""
    return f"{run}.order"


def heartbeat_topic(run: str) -> str:
    """The numbers of the heartbeats that the run puts into its stage topics under order `inband`."""
    return f"{run}.heartbeats"


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def settings(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    def engine(self, stage: str = "") -> Path:
        return self.path / f"engine{'-' if stage else ''}{stage}.json"

    @property
    def broker(self) -> "ProcessFolder":
        return ProcessFolder(self.path / "broker")

    @property
    def egress(self) -> "ProcessFolder":
        return ProcessFolder(self.path / "egress")

    def digest(self, stage: str = "") -> "ProcessFolder":
        return ProcessFolder(self.path / f"digest{'-' if stage else ''}{stage}")

    @property
    def kafka_options(self) -> Path:
        """librdkafka's options, for the run's processes beside the sites."""
        return self.path / "kafka.json"

    def orders(self, name: str) -> "ProcessFolder":
        """A process that makes the order: a generator, a leader, the coordination service."""
        return ProcessFolder(self.path / "orders" / name)

    @property
    def readers(self) -> Path:
        """Who reads which topic of the run, for whoever trims them."""
        return self.path / "readers.json"

    @property
    def trimmed(self) -> Path:
        """Which partitions had been added to inputs where the order topic begins, once it was trimmed."""
        return self.path / "trimmed.json"

    def others(self) -> "list[ProcessFolder]":
        """Digests and what makes the order, as far as there are any."""
        found = [*self.path.glob("digest*"), *(self.path / "orders").glob("*")]
        return [ProcessFolder(path) for path in sorted(found) if path.is_dir()]

    def site(self, name: str) -> "ProcessFolder":
        return ProcessFolder(self.path / "sites" / name)

    def all_sites(self) -> "dict[str, ProcessFolder]":
        """Those that have a folder, also of an earlier life of the run that had more of them."""
        folder = self.path / "sites"
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return {name: self.site(name) for name in found}


@dataclass(frozen=True)
class ProcessFolder:
    """The folder of one process of a run: how a new supervisor finds what an older one started."""

    path: Path

    @property
    def pid_file(self) -> Path:
        return self.path / "pid"

    @property
    def status_file(self) -> Path:
        return self.path / "status.json"

    @property
    def log(self) -> Path:
        return self.path / f"{self.path.name.split('-')[0]}.log"

    @property
    def checkpoint(self) -> Path:
        return self.checkpoint_of("")

    def checkpoint_of(self, stage: str) -> Path:
        """Of a stage before the last, by its name; the last one's has none in it."""
        return self.path / f"checkpoint{'-' if stage else ''}{stage}"

    @property
    def copied(self) -> Path:
        """Where a site began that took the checkpoint of another one."""
        return self.path / "copied.json"

    @property
    def last_words(self) -> Path:
        """What a site's JVM wrote about the record that it died at."""
        return self.path / "last-words"

    def status(self) -> dict[str, Any]:
        """What the process last reported; empty if it never did."""
        return read_json(self.status_file) or {}

    def note_pid(self, pid: int) -> None:
        write_json(self.pid_file, {"pid": pid, "started": started(pid), "boot": _boot()})

    def live_pid(self) -> int | None:
        """The pid of the process that was started here, if it still runs (a reused pid does not count)."""
        noted = read_json(self.pid_file)
        return int(noted["pid"]) if noted and _same(noted) else None

    def end(self, *, grace: float) -> None:
        """End the process and everything it started; return when all of it is gone.

        The JVM of a site that was killed lives on for a moment, and two queries on one checkpoint would
        write over each other: so the whole group is killed and waited for.
        """
        noted = read_json(self.pid_file)
        if not noted or noted.get("boot") != _boot():
            return
        pid = int(noted["pid"])
        alive = process.alive(pid)
        if alive and not _same(noted):  # somebody else's by now
            self.pid_file.unlink(missing_ok=True)
            return
        if alive and grace > 0:
            _signal(pid, signal.SIGTERM)
            process.wait_gone(pid, grace)
        members = {pid, *_members(pid)}
        _signal_group(pid)
        status = self.status()
        jvm = int(status.get("jvm_pid") or 0) if status.get("pid") == pid else 0
        if jvm > 1 and _is_java(jvm):
            members.add(jvm)
            _signal(jvm, signal.SIGKILL)
        for member in members:
            if not process.wait_gone(member, 10.0):
                raise LockstepError(
                    f"process {member} of {self.path.name} does not end", hint=f"kill -9 {member}"
                )
        self.pid_file.unlink(missing_ok=True)


def started(pid: int) -> int:
    """When the kernel says the process started: tells a process from a later one with the same pid."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file as a whole: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    temporary.touch(0o600)  # settings may hold credentials
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True))
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LockstepError(
            f"{path} is damaged: {error}", hint="remove the run folder to start over"
        ) from error
    if not isinstance(value, dict):
        raise LockstepError(f"{path} is damaged", hint="remove the run folder to start over")
    return value


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _signal_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _same(noted: Mapping[str, Any]) -> bool:
    pid = int(noted.get("pid", 0))
    same_boot = noted.get("boot") == _boot()
    return pid > 1 and same_boot and process.alive(pid) and started(pid) == noted.get("started")


def _members(group: int) -> list[int]:
    """Processes of a group. Its number is not given to others as long as it has any."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                pass
    return found


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _is_java(pid: int) -> bool:
    try:
        return "java" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False
