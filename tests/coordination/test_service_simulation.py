"""The service under 1,000 random schedules, and checkers that find what was planted."""

import re

import pytest

from lockstep.coordination.service_planted import planted
from lockstep.coordination.service_simulation import Violation, World

BUGS = planted()


def test_every_promise_holds_over_many_seeds() -> None:
    """`World(seed).run()` replays one that fails."""
    for seed in range(1000):
        try:
            World(seed).run()
        except AssertionError as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation


def test_schedules_reach_what_they_are_for() -> None:
    reached = World(1).run(4000)
    assert all(reached[what] for what in ("elections", "restarts", "snapshots", "events", "replies")), reached


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    service, promise = BUGS[bug]
    for seed in range(300):
        try:
            World(seed, service=service).run()
        except (Violation, AssertionError) as violation:
            assert re.match(promise, str(violation)), f"seed {seed}: {violation}"
            return
    raise AssertionError(f"{bug} was not found")
