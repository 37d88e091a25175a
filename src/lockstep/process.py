"""The one process launcher: every child process of Lockstep is started here.

A child never outlives what started it: the kernel sends it SIGKILL when its parent dies (PR_SET_PDEATHSIG),
also after a kill -9 of the parent. A child that must outlive its launcher (a site outlives its
supervisor) is started with `tied=False` and is found again through its pid file.

PDEATHSIG follows the *thread* that forked. So children are always forked from one long-lived launcher
thread, whichever thread calls `launch`.

A child leads a process group but no session. Linux may weigh whole sessions against each other (autogroup); then
`nice` counts only within one. All processes of a run share the session of the command that started them, so that a
site which steps aside (`replicas/priority.py`) steps aside for the other sites.
"""

import ctypes
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from lockstep.errors import LockstepError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

_Job = tuple[
    "Future[subprocess.Popen[bytes]]",
    Sequence[str],
    dict[str, str] | None,
    Path | None,
    int | IO[bytes],
    bool,
]
_jobs: "queue.SimpleQueue[_Job]" = queue.SimpleQueue()
_launcher_lock = threading.Lock()
_launcher_pid = 0


def launch(
    command: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    tied: bool = True,
) -> "subprocess.Popen[bytes]":
    """Start `command` in a process group of its own, its output appended to `log` (or dropped)."""
    full_env = {**os.environ, **env} if env is not None else None
    _ensure_launcher()
    future: Future[subprocess.Popen[bytes]] = Future()
    if log is None:
        _jobs.put((future, command, full_env, cwd, subprocess.DEVNULL, tied))
        return _launched(future, command)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        _jobs.put((future, command, full_env, cwd, output, tied))
        return _launched(future, command)


def stop(process: "subprocess.Popen[bytes]", *, grace: float = 10.0) -> None:
    """Ask the process to end; after `grace` seconds kill its whole group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """kill -9 of the process and of the group that it leads."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def alive(pid: int) -> bool:
    """Whether a process with this pid runs (a zombie does not count)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_gone(pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _launched(future: "Future[subprocess.Popen[bytes]]", command: Sequence[str]) -> "subprocess.Popen[bytes]":
    try:
        return future.result()
    except FileNotFoundError as error:
        raise LockstepError(f"cannot start {command[0]}: no such program") from error
    except PermissionError as error:
        raise LockstepError(f"cannot start {command[0]}: it is not executable") from error


def _ensure_launcher() -> None:
    global _launcher_pid
    with _launcher_lock:
        if _launcher_pid != os.getpid():
            _launcher_pid = os.getpid()
            threading.Thread(target=_serve, name="lockstep-launcher", daemon=True).start()


def _serve() -> None:
    while True:
        future, command, env, cwd, output, tied = _jobs.get()
        parent = os.getpid()
        try:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=(lambda parent=parent: _die_with(parent)) if tied else None,
            )
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(process)


def _die_with(parent: int) -> None:
    """Runs in the child between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl took hold
        os._exit(1)
