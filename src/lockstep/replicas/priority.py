"""A site that starts steps aside: it runs at low priority until it has caught up.

Starting a JVM and replaying a batch takes some ten CPU seconds, just when the other sites carry the load alone. On
a machine that they share, that shows in their latency. Only a process that may raise its priority again does this
(root, or a limit that allows it: `ulimit -e`); elsewhere nothing changes.

Nothing stays aside, not even Java's thorough compiler: where the cores are full it would get nothing, and what it
has not compiled keeps them full.
"""

import os
import resource
from pathlib import Path

import psutil

ASIDE = 10
_NORMAL = 0


def may_return() -> bool:
    """Whether this process can go back to normal priority after it has lowered it."""
    if os.geteuid() == 0:
        return True
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return soft >= 20  # the limit counts from 20 downwards: 20 allows nice 0


def step_aside() -> bool:
    """Lower the priority of this process and of all that it will start; False where that could not be undone."""
    if os.getpriority(os.PRIO_PROCESS, 0) != _NORMAL or not may_return():
        return False
    os.setpriority(os.PRIO_PROCESS, 0, ASIDE)
    return True


def step_forward(pid: int) -> None:
    """Back to normal, with every process that this one has started: Python workers began at low priority too.

    Each goes before those below it: what it starts from then on is at normal priority from its beginning.
    """
    _step_forward(pid)
    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return
    for child in children:
        step_forward(child.pid)


def _step_forward(pid: int) -> None:
    """Every thread: on Linux each has a priority of its own."""
    for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NORMAL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # the thread has ended, or the limit has changed: low priority is no error
