"""ZAB in the simulator: many seeds keep every promise, and planted bugs are found.

`lockstep sim coordination --seeds 20000` runs more.
"""

from collections.abc import Callable

import pytest
from zab_ensemble import Ensemble

from lockstep.coordination.simulation import Coordination
from lockstep.coordination.zab.planted import BUGS, VoteIgnoresEpoch
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import variant
from lockstep.sim.faults import MILLISECOND, FaultMix
from lockstep.sim.runner import report, run_seed
from lockstep.sim.scenario import scenario_class

STORM = FaultMix(
    crash_every=80 * MILLISECOND,
    down_for=30 * MILLISECOND,
    power_cut=0.5,
    ambush=0.05,
    disk_latency=3_000,
    slow_disk=30_000,
    delay=300,
    jitter=500,
)
FOUND_QUICKLY = (
    "ack-before-persist",
    "epoch-not-persisted",
    "plain-dep",
    "trunc-skipped",
    "commit-without-quorum",
    "elect-by-id",
    "wiped-server-votes",
)


def test_every_promise_is_kept_under_every_seed(keeps_every_promise: Callable[[str, int], None]) -> None:
    keeps_every_promise("coordination", 1000)


def test_every_promise_is_kept_in_the_storm_that_finds_the_bugs() -> None:
    for seed in range(80):
        outcome = run_seed(Coordination, seed, faults=STORM)
        assert not outcome.violations, report(outcome, "coordination")


@pytest.mark.parametrize("bug", FOUND_QUICKLY)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert any(run_seed(Coordination, seed, bug=bug, faults=STORM).violations for seed in range(80))


def test_the_scenario_is_on_the_command_line_with_its_bugs() -> None:
    assert scenario_class("coordination") is Coordination
    assert set(FOUND_QUICKLY) <= set(Coordination.bugs) == set(BUGS)


def older_entry_committed_by_a_newer_epoch(kind: type[Server]) -> Ensemble:
    """Footnote 1's kind of bug. X alone has "a" of epoch 1; Z alone has "b" of epoch 2. If X may lead again
    and commit "a" in epoch 3, then Z must not win afterwards, although "b" has the larger zxid."""
    ensemble = Ensemble(3, variant("rtzk-l"), servers=dict.fromkeys((1, 2, 3), kind))
    ensemble.start()
    x = ensemble.settle()
    y, z = (id for id in ensemble.hosts if id != x)
    ensemble.isolate(x)
    ensemble.propose(b"a", leader=x)
    ensemble.until(lambda: ensemble.leader() in (y, z))
    z, y = ensemble.leader(), next(id for id in (y, z) if id != ensemble.leader())
    ensemble.isolate(z)
    ensemble.propose(b"b", leader=z)
    ensemble.run(0.05)
    ensemble.crash(z)
    ensemble.heal()
    ensemble.settle()
    ensemble.crash(x)
    ensemble.start(z)
    ensemble.settle()
    ensemble.run(0.1)
    return ensemble


def test_votes_that_ignore_the_epoch_take_back_what_was_committed() -> None:
    with pytest.raises(AssertionError, match="cannot be taken back"):
        older_entry_committed_by_a_newer_epoch(VoteIgnoresEpoch)


def test_votes_by_epoch_keep_what_was_committed() -> None:
    ensemble = older_entry_committed_by_a_newer_epoch(Server)
    assert len({tuple(host.applied) for host in ensemble.running()}) == 1
