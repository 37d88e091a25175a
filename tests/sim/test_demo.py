"""`lockstep demo protocol` for real: a broker, three processes, a kill -9, and a verdict that can fail."""

import subprocess
import sys

import pytest
from rich.console import Console

from lockstep.cli.demo_protocol import _verdict
from lockstep.sim.history import Delivered, Operation, Sequence
from lockstep.sim.replog.live import LiveRun
from lockstep.sim.replog.messages import Answer, Committed, Put


@pytest.mark.real
def test_the_demo_kills_a_process_and_ends_clean() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "demo", "protocol", "--commands", "300"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 of" in done.stdout
    assert "CLEAN: 300 commands" in done.stdout


def live(*positions: int, killed: str = "n1") -> LiveRun:
    """One command that was answered, and a node that delivered these positions."""
    asked = Operation("c1-1", 1, Put("x", "a"), 1, 2, Answer())
    items = [Committed(position, "c1-1", 1, asked.command, position == 1) for position in positions]
    whole = Sequence("n2", 1, [Delivered(1, Committed(1, "c1-1", 1, asked.command, True))])
    return LiveRun([asked], [Sequence("n1", 1, [Delivered(1, item) for item in items]), whole], killed)


@pytest.mark.parametrize(
    ("run", "broken"),
    [
        (live(1), []),
        (live(1, killed=""), ["a process was killed"]),
        (live(), ["eventual delivery once faults stop"]),
        (live(2), ["prefix agreement", "no gap", "exactly once"]),
    ],
)
def test_the_verdict_is_clean_only_if_every_promise_was_kept(run: LiveRun, broken: list[str]) -> None:
    assert [violation.promise for violation in _verdict(Console(quiet=True), run)] == broken
