"""Both orders under every fault the simulator knows, and proof that its checkers can see."""

from random import Random

import pytest

from lockstep.order.inband_simulation import InBand
from lockstep.order.simulation import KaZoo, LiveRobin, OrderScenario
from lockstep.sim.runner import report, run_seed
from lockstep.sim.scenario import Scenario

PLANTED = [(kind, bug) for kind in (LiveRobin, KaZoo, InBand) for bug in kind.bugs]


@pytest.mark.parametrize(("kind", "seeds"), [(LiveRobin, 1000), (KaZoo, 1000), (InBand, 200)])
def test_every_replica_has_one_sequence_and_loses_nothing(kind: type[Scenario], seeds: int) -> None:
    for seed in range(seeds):
        outcome = run_seed(kind, seed)
        assert not outcome.violations, report(outcome, kind.__name__)


@pytest.mark.parametrize("kind", [LiveRobin, KaZoo])
def test_some_of_these_runs_lose_all_sites_but_one_for_good(kind: type[OrderScenario]) -> None:
    """f > 1 (section III): three of four sites die and stay dead, and the fourth delivers everything."""
    drawn = [kind(Random(seed)) for seed in range(200)]
    assert any(len(one.sites) == 4 and len(one.survivors) == 1 for one in drawn)


@pytest.mark.parametrize(("kind", "bug"), PLANTED)
def test_each_planted_bug_is_found(kind: type[Scenario], bug: str) -> None:
    assert any(run_seed(kind, seed, bug=bug).violations for seed in range(200)), f"{bug} was not found"
