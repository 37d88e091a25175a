"""The replicated log keeps its promises under every fault; each planted bug breaks one and is found."""

import pytest

from lockstep.errors import UsageError
from lockstep.sim.checkers.linearizable import LINEARIZABLE
from lockstep.sim.checkers.order import EXACTLY_ONCE
from lockstep.sim.logorder import LogOrder
from lockstep.sim.replog.scenario import ReplicatedLog
from lockstep.sim.runner import report, run_seed
from lockstep.sim.scenario import Scenario, scenario_class

WITHIN = 2_000
"""Seeds within which every planted bug must show. docs/simulator.md records how many each really takes."""
PLANTED = [(ReplicatedLog, bug) for bug in ReplicatedLog.bugs] + [(LogOrder, bug) for bug in LogOrder.bugs]


@pytest.mark.parametrize(("kind", "seeds"), [(ReplicatedLog, 500), (LogOrder, 400)])
def test_every_promise_is_kept(kind: type[Scenario], seeds: int) -> None:
    for seed in range(seeds):
        outcome = run_seed(kind, seed)
        assert not outcome.violations, report(outcome, kind.__name__)


@pytest.mark.parametrize(("kind", "bug"), PLANTED, ids=[bug for _, bug in PLANTED])
def test_each_planted_bug_is_found(kind: type[Scenario], bug: str) -> None:
    assert any(run_seed(kind, seed, bug=bug).violations for seed in range(WITHIN)), f"{bug} was not found"


def test_there_are_at_least_eight_bugs_to_find() -> None:
    assert len(ReplicatedLog.bugs) >= 8


@pytest.mark.parametrize(
    ("bug", "promise"), [("dedup-off-by-one", EXACTLY_ONCE), ("local-read", LINEARIZABLE)]
)
def test_a_bug_is_named_by_the_promise_that_it_breaks(bug: str, promise: str) -> None:
    outcomes = (run_seed(ReplicatedLog, seed, bug=bug) for seed in range(WITHIN))
    found = next(outcome for outcome in outcomes if outcome.violations)
    assert found.violations[0].promise == promise


def test_tracing_does_not_change_a_run() -> None:
    for seed in range(10):
        plain, traced = run_seed(ReplicatedLog, seed), run_seed(ReplicatedLog, seed, trace=True)
        assert (plain.events, plain.ended) == (traced.events, traced.ended)
        assert plain.history.operations == traced.history.operations


def test_an_unknown_protocol_or_bug_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no protocol is called 'nope'"):
        scenario_class("nope")
    with pytest.raises(UsageError, match="no bug is called"):
        run_seed(ReplicatedLog, 1, bug="nope")
