"""What a server says about itself: its phase, and at the leader how many followers are up to date."""

import pytest
from zab_ensemble import Ensemble

from lockstep.coordination.phases import Phases
from lockstep.coordination.zab.interface import Decided, Following, Leading, Looking
from lockstep.coordination.zab.settings import Settings


def served(count: int) -> Ensemble:
    ensemble = Ensemble(count, Settings())
    ensemble.start()
    ensemble.settle()
    return ensemble


def test_a_follower_counts_as_synced_only_when_it_is_up_to_date() -> None:
    ensemble = served(3)
    leader = ensemble.leader()
    assert ensemble.hosts[leader].server.synced_followers == 2
    back = min(id for id in ensemble.hosts if id != leader)
    ensemble.crash(back)
    ensemble.run(0.01)
    assert ensemble.hosts[leader].server.synced_followers == 1
    ensemble.drop = lambda sent: sent.name == "AckNewLeader"
    ensemble.start(back)
    ensemble.until(lambda: frozenset((leader, back)) in ensemble.quorum)
    ensemble.run(0.02)
    assert ensemble.hosts[leader].server.synced_followers == 1, "a connection is not enough"
    assert ensemble.hosts[back].server.phase == "synchronised"
    ensemble.drop = lambda sent: False
    ensemble.settle()
    assert ensemble.hosts[leader].server.synced_followers == 2
    assert ensemble.hosts[back].server.synced_followers == 0


def test_the_phase_names_what_a_server_does() -> None:
    ensemble = served(3)
    leader = ensemble.leader()
    assert {host.server.phase for host in ensemble.running()} == {"broadcast"}
    ensemble.crash(*(id for id in ensemble.hosts if id != leader))
    ensemble.until(lambda: isinstance(ensemble.hosts[leader].roles[-1], Looking))
    assert ensemble.hosts[leader].server.phase.startswith("election: ")


def test_election_and_recovery_are_timed_apart_and_attempts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("lockstep.coordination.phases.time.monotonic", lambda: now[0])
    phases = Phases()
    for after, item in (
        (0.000, Looking("it has just started")),
        (0.010, Decided(2)),
        (0.500, Looking("the leader did not come up in time")),
        (0.020, Decided(3)),
        (0.005, Following(3, 1)),
    ):
        now[0] += after
        phases.on_delivery(item)
    assert (phases.elections, phases.last_election_ms, phases.last_recovery_ms) == (1, 530.0, 5.0)
    for after, item in ((9.0, Looking("the leader is gone")), (0.008, Decided(1)), (0.002, Leading(2))):
        now[0] += after
        phases.on_delivery(item)
    assert (phases.elections, phases.last_election_ms, phases.last_recovery_ms) == (2, 8.0, 2.0)
    assert (phases.longest_election_ms, phases.longest_recovery_ms) == (530.0, 5.0)
