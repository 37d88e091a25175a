"""Both orders under every fault the simulator knows, and proof that its checkers can see."""

import pytest

from lockstep.order.simulation import KaZoo, LiveRobin
from lockstep.sim.runner import report, run_seed
from lockstep.sim.scenario import Scenario

PLANTED = [(LiveRobin, bug) for bug in LiveRobin.bugs] + [(KaZoo, bug) for bug in KaZoo.bugs]


@pytest.mark.parametrize("kind", [LiveRobin, KaZoo])
def test_every_replica_has_one_sequence_and_loses_nothing(kind: type[Scenario]) -> None:
    for seed in range(150):
        outcome = run_seed(kind, seed)
        assert not outcome.violations, report(outcome, kind.__name__)


@pytest.mark.parametrize(("kind", "bug"), PLANTED)
def test_each_planted_bug_is_found(kind: type[Scenario], bug: str) -> None:
    assert any(run_seed(kind, seed, bug=bug).violations for seed in range(200)), f"{bug} was not found"
