"""Both orders under every fault the simulator knows, and proof that its checkers can see."""

from collections.abc import Callable
from random import Random

import pytest

from lockstep.order.inband_simulation import InBand
from lockstep.order.simulation import KaZoo, LiveRobin, OrderScenario
from lockstep.sim.runner import run_seed
from lockstep.sim.scenario import Scenario

PLANTED = [(kind, bug) for kind in (LiveRobin, KaZoo, InBand) for bug in kind.bugs]


@pytest.mark.parametrize("protocol", ["liverobin", "kazoo", "inband"])
def test_every_replica_has_one_sequence_and_loses_nothing(
    protocol: str, keeps_every_promise: Callable[[str, int], None]
) -> None:
    keeps_every_promise(protocol, 1000)


@pytest.mark.parametrize("kind", [LiveRobin, KaZoo])
def test_some_of_these_runs_lose_all_sites_but_one_for_good(kind: type[OrderScenario]) -> None:
    """f > 1 (section III): three of four sites die and stay dead, and the fourth delivers everything."""
    drawn = [kind(Random(seed)) for seed in range(200)]
    assert any(len(one.sites) == 4 and len(one.survivors) == 1 for one in drawn)


@pytest.mark.parametrize(("kind", "bug"), PLANTED)
def test_each_planted_bug_is_found(kind: type[Scenario], bug: str) -> None:
    assert any(run_seed(kind, seed, bug=bug).violations for seed in range(200)), f"{bug} was not found"
