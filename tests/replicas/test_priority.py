"""A site that starts steps aside, and comes back with all its threads."""

import os
import subprocess
import sys

import pytest

from lockstep.replicas import priority

SCRIPT = """
import os, threading, time
from pathlib import Path
from lockstep.replicas.priority import step_aside, step_forward
assert step_aside()
started = threading.Event()
done = threading.Event()
threading.Thread(target=lambda: (started.set(), done.wait()), daemon=True).start()
started.wait()
def all_of_us():
    return {os.getpriority(os.PRIO_PROCESS, int(t.name)) for t in Path("/proc/self/task").iterdir()}
assert all_of_us() == {10}, all_of_us()
step_forward(os.getpid())
assert all_of_us() == {0}, all_of_us()
"""
WORKER = """
import os, subprocess, sys
from lockstep.replicas.priority import step_aside, step_forward
daemon = "import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}], stdin=sys.stdin)"
worker = "import os; print(os.getpid(), flush=True); input()"
assert step_aside()
command = [sys.executable, "-c", daemon.format(worker=worker)]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
    working = int(started.stdout.readline())
    everybody = (os.getpid(), started.pid, working)
    def priorities():
        return [os.getpriority(os.PRIO_PROCESS, pid) for pid in everybody]
    assert priorities() == [10, 10, 10], priorities()
    step_forward(os.getpid())
    assert priorities() == [0, 0, 0], priorities()
"""


def test_every_thread_comes_back() -> None:
    if priority.may_return():
        subprocess.run([sys.executable, "-c", SCRIPT], check=True)
    else:
        assert not priority.step_aside(), "who cannot come back must not go"


def test_processes_that_were_started_aside_come_back_too() -> None:
    if priority.may_return():
        subprocess.run([sys.executable, "-c", WORKER], check=True)


def test_who_could_not_come_back_does_not_step_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "may_return", lambda: False)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert not priority.step_aside()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
