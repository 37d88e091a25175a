"""The process launcher: children never outlive what started them, and never die before it."""

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep import process
from lockstep.errors import LockstepError

PARENT = """
import signal, sys
from lockstep import process
child = process.launch([sys.executable, "-c", "import signal; signal.pause()"], tied={tied})
print(child.pid, flush=True)
signal.pause()
"""


def parent(*, tied: bool) -> tuple["subprocess.Popen[str]", int]:
    started = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(tied=tied)], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    return started, int(started.stdout.readline())


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    started, child = parent(tied=True)
    assert process.alive(child)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert process.wait_gone(child, 10)


def test_an_untied_child_outlives_its_parent() -> None:
    started, child = parent(tied=False)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    try:
        assert not process.wait_gone(child, 0.3)
    finally:
        subprocess.run(["kill", "-9", str(child)], check=True)


def test_an_untied_child_outlives_the_terminal() -> None:
    """It is in the session of what started it, but not in the group that a hang-up ends."""
    parent_pid, terminal = pty.fork()
    if parent_pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", PARENT.format(tied=False)])
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        child = int(screen.read(100))
    os.waitpid(parent_pid, 0)
    try:
        assert not process.wait_gone(child, 0.3)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_shares_the_session_so_that_nice_counts() -> None:
    """Linux weighs sessions against each other (autogroup): `nice` counts only within one."""
    child = process.launch([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid
    finally:
        process.kill(child)


def test_a_child_that_a_short_lived_thread_started_lives_on() -> None:
    """PDEATHSIG follows the thread that forked: children come from one lasting thread."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(process.launch([sys.executable, "-c", "import signal; signal.pause()"]))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    try:
        assert not process.wait_gone(children[0].pid, 0.3)
    finally:
        process.kill(children[0])


def test_stop_asks_first_and_kills_what_does_not_listen(tmp_path: Path) -> None:
    deaf = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); [signal.pause() for _ in iter(int, 1)]"
    )
    log = tmp_path / "log"
    child = process.launch([sys.executable, "-c", deaf], log=log)
    while not log.read_text():
        assert child.poll() is None
    process.stop(child, grace=0.2)
    assert child.returncode == -signal.SIGKILL


def test_a_missing_program_is_named() -> None:
    with pytest.raises(LockstepError, match="no such program"):
        process.launch(["no-such-program-anywhere"])
