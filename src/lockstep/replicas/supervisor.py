"""The supervisor: starts the sites of a run, watches them, and starts again what died.

It is not in the data path. Sites read, compute and write without it; killing it harms no output, and a new
one adopts what runs. In order:

1. Take the run folder's lock (flock): two supervisors, or two runs with one name, cannot be.
2. Bring up the broker if the run has an embedded one; check or freeze the manifest; write `run.json`.
3. Start the sites in parallel; adopt those that run already.
4. Watch: a dead site is started again from its checkpoint, after a short back-off, once every process of
   its former life is gone. A site that cannot start (exit code 2) or never gets to run ends the run with
   its reason.
5. Stop: end sites, egress and broker, in this order, and give the lock back.

`tied` sites die with the supervisor, also after its kill -9 (tests, demos, notebooks). Untied ones outlive it.
"""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from lockstep import process
from lockstep.errors import LockstepError, UsageError
from lockstep.log.options import read_options
from lockstep.observe.logger import get_logger
from lockstep.replicas.catch_up import READING, RUNNING
from lockstep.replicas.layout import ProcessFolder, RunFolder, seals_topic
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.poison import Suspect, Verdict, bury, dead_letter_topic
from lockstep.replicas.settings import RunSettings

logger = get_logger(__name__)

START_SECONDS = 180.0
TRIMMER = "trimmer"
"""What trims the run's topics: like the digests, a run can do without it."""
_TICK_SECONDS = 0.05
_BACKOFF_SECONDS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_GIVE_UP_AFTER = 5
"""Failed starts in a row, of a site that never ran, before the run is given up."""
_TOLD_AFTER = 2
"""Failures in a row that are no accident any more."""
_SETTLED_SECONDS = 30.0
_LIVED_SECONDS = 2.0
"""A process that reports nothing and lived so long can start."""

Say = Callable[[str], None]
SiteCommand = Callable[[RunFolder, str], Sequence[str]]


def own_command(module: str, *arguments: str) -> list[str]:
    """A command line that runs one of our modules in this Python."""
    return [sys.executable, "-m", module, *arguments]


def site_command(run: RunFolder, site: str) -> Sequence[str]:
    return own_command("lockstep.replicas.site", "--run-folder", str(run.path), "--site", site)


@dataclass
class Child:
    """One process of the run as its supervisor sees it, started here or adopted."""

    name: str
    folder: ProcessFolder
    command: Sequence[str]
    reports: bool = True
    """Whether it says how it is in a status file; else it runs as long as it lives."""
    popen: "subprocess.Popen[bytes] | None" = None
    adopted: bool = False
    starts: int = 0
    failures: int = 0
    ran: bool = False
    began: float = 0.0
    restart_at: float | None = None
    last_error: str = ""
    history: list[str] = field(default_factory=list)

    def launch(self, *, tied: bool) -> None:
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.folder.status_file.unlink(missing_ok=True)
        self.popen = process.launch(self.command, log=self.folder.log, tied=tied)
        self.folder.note_pid(self.popen.pid)
        self.adopted = False
        self.starts += 1
        self.began = time.monotonic()
        self.restart_at = None

    def adopt(self) -> bool:
        """Take over a process that an earlier supervisor started."""
        if self.folder.live_pid() is None:
            return False
        self.adopted = True
        self.ran = True
        self.began = time.monotonic()
        return True

    def exit_code(self) -> int | None:
        """None while it runs; of an adopted process only that it ended is known."""
        if self.popen is not None:
            return self.popen.poll()
        return None if self.folder.live_pid() is not None else -1

    @property
    def state(self) -> str:
        if self.restart_at is not None:
            return "restarting"
        if not self.reports:
            return RUNNING
        return str(self.folder.status().get("state", "starting"))


class Supervisor:
    """Use `start`, then `check` now and then (it raises when the run has failed), then `stop`."""

    def __init__(
        self,
        run: RunFolder,
        settings: RunSettings,
        *,
        tied: bool = True,
        lock: IO[str] | None = None,
        command: SiteCommand = site_command,
        say: Say = lambda text: None,
    ) -> None:
        self.run = run
        self.settings = settings
        self.sites = {name: Child(name, run.site(name), command(run, name)) for name in settings.site_names}
        self.others: dict[str, Child] = {}
        self.failure: LockstepError | None = None
        self.events: list[tuple[float, str]] = []
        self._tied = tied
        self._say = say
        self._lock = lock
        self._watcher: threading.Thread | None = None
        self._ending = threading.Event()
        self._mutex = threading.RLock()
        self._divergence: str | None = None
        self._verdict = Verdict(settings.site_names)

    def take(self) -> "Supervisor":
        """Become the one supervisor of this run folder."""
        self._lock = take_lock(self.run)
        return self

    def start(self) -> "Supervisor":
        """Start or adopt everything; returns at once. Use `wait_running` to see it through."""
        if self._lock is None:
            self.take()
        self.settings.write(self.run.settings)
        for child in self.sites.values():
            if child.adopt():
                self._event(f"{child.name}: adopted (process {child.folder.live_pid()})")
            else:
                child.folder.end(grace=0)
                child.launch(tied=self._tied)
        self._end_strangers()
        self._watcher = threading.Thread(target=self._watch, name="lockstep-supervisor", daemon=True)
        self._watcher.start()
        return self

    def add(self, name: str, folder: ProcessFolder, command: Sequence[str], *, reports: bool = True) -> Child:
        """Keep another process of the run alive (egress, digests, those that make the order)."""
        child = Child(name, folder, command, reports)
        with self._mutex:
            if not child.adopt():
                child.folder.end(grace=0)
                child.launch(tied=self._tied)
            self.others[name] = child
        return child

    def wait_running(self, timeout: float = START_SECONDS, *, at_least: int | None = None) -> None:
        """Until that many sites (all of them, if not told) run, that is, have caught up with their input.

        One that is still catching up when time is over is slow, not broken: it is waited for no longer.
        """
        deadline = time.monotonic() + timeout
        wanted = at_least or len(self.sites)
        while sum(child.state == RUNNING for child in self.sites.values()) < wanted:
            self.check()
            if time.monotonic() > deadline:
                late = [c.name for c in self.sites.values() if c.state not in READING]
                if len(self.sites) - len(late) >= wanted:
                    return
                logs = ", ".join(str(self.sites[name].folder.log) for name in late)
                raise LockstepError(
                    f"{', '.join(late)} did not start within {timeout:.0f} s", hint=f"see {logs}"
                )
            time.sleep(_TICK_SECONDS)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def kill(self, site: str) -> int:
        """kill -9 of a site: driver and JVM at once. The watcher will start it again. Returns its pid."""
        if site not in self.sites:
            raise UsageError(f"there is no site {site!r}", hint=f"one of: {', '.join(self.sites)}")
        with self._mutex:
            pid = self.sites[site].folder.live_pid()
            if pid is None:
                raise LockstepError(f"{site} does not run", hint="it is being restarted; look at status()")
            status = self.sites[site].folder.status()
            process_group_kill(pid, status.get("jvm_pid") if status.get("pid") == pid else None)
            return pid

    def pid(self, name: str) -> int | None:
        """The process of a site or of anything else that the run keeps alive."""
        return {**self.sites, **self.others}[name].folder.live_pid()

    def status(self) -> dict[str, Any]:
        return {
            "name": self.settings.name,
            "failure": str(self.failure) if self.failure else None,
            "sites": {name: self._site_status(child) for name, child in self.sites.items()},
            "others": {
                name: {**child.folder.status(), "starts": child.starts} for name, child in self.others.items()
            },
        }

    def stop(self, *, grace: float = 5.0) -> None:
        """End everything that belongs to the run. Stopping a stopped run is fine."""
        self._ending.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(15)
        with self._mutex:
            last = [child for name, child in self.others.items() if name == "broker"]
            first = [child for child in (*self.sites.values(), *self.others.values()) if child not in last]
            for children in (first, last):
                ends = [threading.Thread(target=self._end, args=(child, grace)) for child in children]
                for end in ends:
                    end.start()
                for end in ends:
                    end.join()
        self.release()

    def release(self) -> None:
        """Stop watching and give the lock back, but leave the processes as they are (they can be adopted)."""
        self._ending.set()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # Inside

    def _watch(self) -> None:
        try:
            while not self._ending.wait(_TICK_SECONDS):
                with self._mutex:
                    for child in (*self.sites.values(), *self.others.values()):
                        self._look_after(child)
                    self._heed_divergence()
        except LockstepError as error:
            self.failure = error
        except Exception as error:
            logger.exception("the supervisor failed")
            self.failure = LockstepError(f"the supervisor failed: {error}")

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.restart_at is not None:
            if now >= child.restart_at:
                child.folder.end(grace=0)
                child.launch(tied=self._tied)
                self._event(f"{child.name}: started again (process {child.popen.pid if child.popen else 0})")
            return
        code = child.exit_code()
        status = child.folder.status()
        reads = status.get("state") in READING
        child.ran = child.ran or reads  # also of one that died since: its last status says that it ran
        if code is None:
            if reads or not child.reports:
                child.ran = child.ran or now - child.began > _LIVED_SECONDS
                if child.name in self.sites:
                    self._verdict.alive(child.name, status)
                if now - child.began > _SETTLED_SECONDS:
                    child.failures = 0
            return
        reason = status.get("error") or _ended(code)
        child.last_error = str(reason)
        child.failures += 1
        self._event(f"{child.name}: died ({reason})")
        hopeless = code == 2 or (not child.ran and child.failures >= _GIVE_UP_AFTER)
        if hopeless and not self._can_do_without(child):
            raise LockstepError(f"{child.name} cannot start: {reason}", hint=f"its log: {child.folder.log}")
        if child.name in self.sites:
            suspect = Suspect.of_status(status)
            if suspect is None and child.ran and child.failures == _TOLD_AFTER and status.get("error"):
                self._event(
                    f"{child.name} fails again and again, and no record can be blamed: nothing is skipped, "
                    f"nothing is lost; correct the cause: {reason}"
                )
            self._skip_poison(child.name, suspect)
        child.popen = None
        child.restart_at = now + _BACKOFF_SECONDS[min(child.failures, len(_BACKOFF_SECONDS)) - 1]

    def _can_do_without(self, child: Child) -> bool:
        """Outputs flow as long as one site runs: a run is not given up because another cannot come (back)."""
        if child.name not in self.sites:
            return child.name.startswith(("digest", TRIMMER))
        others = [one for one in self.sites.values() if one is not child and one.state in READING]
        settled = any(one.adopted or time.monotonic() - one.began > _SETTLED_SECONDS for one in others)
        return settled or (child.ran and bool(others))

    def _skip_poison(self, site: str, suspect: Suspect | None) -> None:
        poison = self._verdict.died(site, suspect)
        if poison is None:
            return
        name = self.settings.name
        connection = {
            **read_options(str(self.run.kafka_options)),
            "bootstrap.servers": self.settings.bootstrap_servers,
        }
        manifest = Manifest.read(self.run.manifest)
        readers = [s.run for s in manifest.all_stages if poison.topic in s.partitions] if manifest else []
        for reader in readers or [name]:
            bury(connection, name, seals_topic(reader), poison)
        self._event(
            f"no site can process {poison.topic}-{poison.shard} at {poison.offset} ({poison.reason}): skipped, "
            f"kept in {dead_letter_topic(name)}"
        )

    def _heed_divergence(self) -> None:
        digests = [child for name, child in self.others.items() if name.startswith("digest")]
        told = next(filter(None, (child.folder.status().get("divergence") for child in digests)), None)
        if told and told != self._divergence:
            self._divergence = told
            self._event(told)
            if self.settings.on_divergence == "stop":
                for child in self.sites.values():
                    self._end(child, 0)
                raise LockstepError(told, hint="the log decides who is right: replay the input with one site")

    def _end(self, child: Child, grace: float) -> None:
        child.folder.end(grace=grace)
        if child.popen is not None:
            process.kill(child.popen)

    def _end_strangers(self) -> None:
        """Sites of an earlier life of the run that had more of them."""
        folder = self.run.path / "sites"
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in self.sites:
                ProcessFolder(path).end(grace=0)

    def _site_status(self, child: Child) -> dict[str, Any]:
        status = child.folder.status()
        return {
            **status,
            "state": child.state,
            "pid": child.folder.live_pid(),
            "starts": child.starts,
            "adopted": child.adopted,
            "last_error": child.last_error or None,
        }

    def _event(self, text: str) -> None:
        self.events.append((time.time(), text))
        del self.events[:-200]
        logger.info("%s", text)
        self._say(text)


def take_lock(run: RunFolder) -> IO[str]:
    """The run folder's lock, or an error that names who holds it. The kernel frees it after a kill -9."""
    run.path.mkdir(parents=True, exist_ok=True)
    lock = run.lock.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read(32).strip() or "unknown"
        lock.close()
        raise LockstepError(
            f"a run called {run.path.name} is already supervised by process {holder}",
            hint="stop that one first, or give this run another --name",
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def process_group_kill(pid: int, jvm_pid: int | None) -> None:
    """kill -9 of a site's driver, its group, and its JVM should it be outside."""
    for kill, target in ((os.killpg, pid), (os.kill, jvm_pid or 0)):
        if target:
            try:
                kill(target, 9)
            except (ProcessLookupError, PermissionError):
                pass


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < -1 or code == -9 else f"exit code {code}"
