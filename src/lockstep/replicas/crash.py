"""Named points at which a test kills a process, as a power cut would: proof by kills needs exact places.

`LOCKSTEP_CRASH=egress.before-commit:3` kills the process (SIGKILL, no clean-up) the third time it gets to
that point. Without the variable a point costs a lookup in an empty dict.
"""

import os
import signal
from typing import Final

VARIABLE: Final = "LOCKSTEP_CRASH"


def _parse(text: str) -> dict[str, int]:
    points = {}
    for part in filter(None, text.split(",")):
        name, _, count = part.partition(":")
        points[name] = int(count or 1)
    return points


_points = _parse(os.environ.get(VARIABLE, ""))


def crash_point(name: str) -> None:
    left = _points.get(name)
    if left is not None:
        if left <= 1:
            os.kill(os.getpid(), signal.SIGKILL)
        _points[name] = left - 1
