"""A site that starts steps aside: it runs at low priority until it has caught up.

Starting a JVM and replaying a batch takes some ten CPU seconds, just when the other sites carry the load alone. On
a machine that they share, that shows in their latency. The JVM's compilers stay aside for good: in its first
minutes they take a quarter of a site's CPU time, and no record waits for them. Only a process that may raise its
priority again does this (root, or a limit that allows it: `ulimit -e`); elsewhere nothing changes.
"""

import os
import resource
from pathlib import Path

ASIDE = 10
_NORMAL = 0
_COMPILERS = ("C1 CompilerThre", "C2 CompilerThre")
"""What Linux calls them: names are cut at 15 characters."""


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


def step_forward(*pids: int) -> None:
    """Back to normal, with every thread but the JVM's compilers: on Linux each has a priority of its own."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            try:
                if (thread / "comm").read_text().startswith(_COMPILERS):
                    continue
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _NORMAL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # the thread has ended, or the limit has changed: low priority is no error
