"""The coordination bench's own arithmetic: a bench that reckons wrongly proves nothing."""

from pathlib import Path

import pytest

from lockstep.bench.coordination import shares
from lockstep.bench.coordination_kills import Kill, notices_of, phases_of, summary
from lockstep.bench.coordination_load import Return, is_steady
from lockstep.bench.coordination_model import calibrated
from lockstep.bench.coordination_plots import recovery_cdf
from lockstep.bench.coordination_sides import Mark, in_sync
from lockstep.bench.peers.zookeeper import moments

FOLLOWS = {"zk_server_state": "follower", "zk_last_zxid": "7"}
LEADS = {"zk_server_state": "leader", "zk_last_zxid": "7", "zk_synced_followers": "2"}


def test_phases_are_those_of_the_server_that_leads_in_the_end_and_add_up_to_the_whole() -> None:
    marks = [
        Mark(10.002, 1, "looking"),
        Mark(10.003, 2, "looking"),
        Mark(10.010, 1, "decided"),
        Mark(10.012, 2, "decided"),
        Mark(10.015, 2, "serving"),
        Mark(10.016, 1, "following"),
    ]
    phases = phases_of(marks, killed=10.0, answered=10.020)
    assert phases == pytest.approx({"detection": 3, "election": 9, "recovery": 3, "answer": 5})
    assert sum(phases.values()) == pytest.approx(20)


def test_an_election_that_failed_counts_as_election_not_as_recovery() -> None:
    marks = [
        Mark(0.01, 2, "looking"),
        Mark(0.02, 2, "decided"),
        Mark(0.50, 2, "looking"),
        Mark(0.60, 2, "decided"),
        Mark(0.61, 2, "serving"),
    ]
    phases = phases_of(marks, killed=0.0, answered=0.62)
    assert phases["election"] == pytest.approx(590)
    assert phases["recovery"] == pytest.approx(10)


def test_without_a_server_that_serves_there_are_no_phases() -> None:
    assert phases_of([Mark(1.0, 1, "looking")], killed=0.9, answered=2.0) == {}


def test_each_survivor_notices_once() -> None:
    marks = [Mark(1.1, 1, "looking"), Mark(1.2, 2, "looking"), Mark(1.9, 1, "looking")]
    assert notices_of(marks, killed=1.0) == pytest.approx([0.1, 0.2])


def test_a_summary_keeps_every_sample_and_tells_where_the_client_was() -> None:
    found = summary([Kill(10.0, True), Kill(30.0, False), Kill(20.0, False)])
    assert (found["median"], found["p95"], found["max"], found["count"]) == (20.0, 30.0, 30.0, 3)
    assert found["samples"] == [10.0, 30.0, 20.0]
    assert found["where"]["client_on_leader"]["count"] == 1  # type: ignore[index]


def test_an_ensemble_is_in_sync_only_when_every_server_says_so() -> None:
    assert in_sync({1: FOLLOWS, 2: LEADS, 3: FOLLOWS}) == 2
    assert in_sync({1: {}, 2: LEADS, 3: FOLLOWS}) is None
    assert in_sync({1: FOLLOWS, 2: FOLLOWS, 3: FOLLOWS}) is None
    assert in_sync({1: LEADS, 2: LEADS, 3: FOLLOWS}) is None
    assert in_sync({1: FOLLOWS | {"zk_last_zxid": "6"}, 2: LEADS, 3: FOLLOWS}) is None
    assert in_sync({1: FOLLOWS, 2: LEADS | {"zk_synced_followers": "1"}, 3: FOLLOWS}) is None
    assert in_sync({1: FOLLOWS, 2: {"zk_server_state": "leader"}, 3: {"zk_server_state": "looking"}}) is None


def test_zookeepers_log_tells_its_moments() -> None:
    lines = [
        "1700000000100 INFO QuorumPeer LOOKING",
        "1700000000101 INFO FastLeaderElection New election. My id = 2, proposed zxid=0x100000003",
        "1700000000310 INFO QuorumPeer LEADING",
        "1700000000311 INFO Leader LEADING - LEADER ELECTION TOOK - 210 MS",
        "1700000000400 INFO QuorumPeer Peer state changed: leading - broadcast",
        "java.net.ConnectException: Connection refused",
    ]
    found = moments(lines, 2, ahead=1_700_000_000.0)
    assert [(round(mark.at, 3), mark.moment) for mark in found] == [
        (0.1, "looking"),
        (0.31, "decided"),
        (0.4, "serving"),
    ]


def test_a_technique_gets_what_its_phase_has_lost() -> None:
    def side(median: float, election: float, recovery: float) -> dict[str, object]:
        return {
            "median": median,
            "phases": {"election": {"median": election}, "recovery": {"median": recovery}},
        }

    found = shares({"vanilla": side(240, 200, 30), "rtzk-l": side(40, 10, 25), "rtzk": side(20, 12, 3)})
    assert found == {"fce": 190, "qcn": 5, "dep": 20}


def test_the_worse_of_crash_and_return_decides() -> None:
    assert Return(10.0, 15.0, 30.0, 2000.0, 2.0, 0.1, 0.2).ratio == pytest.approx(3)


def test_a_rate_that_still_rises_is_not_steady() -> None:
    warming = [1842, 2827, 2444, 2965, 4262, 4200, 6858, 5647, 7185, 6826, 9663, 11416]
    assert not any(is_steady(warming[:end]) for end in range(len(warming) + 1))
    assert is_steady([*warming, 9226, 10288, 9756, 11000, 10500])
    assert not is_steady([10_000] * 9)
    assert is_steady([10_000] * 10)


def test_the_models_parameters_are_measured(tmp_path: Path) -> None:
    found = calibrated(tmp_path, [0.002, 0.003, 0.006])
    assert found.s_e == 0.003
    assert found.j == pytest.approx(0.004)
    assert 0 < found.h < 0.1
    assert 0 < found.b < 1


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    one = summary([Kill(10.0, True, {"detection": 1.0, "election": 2.0, "recovery": 3.0, "answer": 4.0})])
    path = recovery_cdf(
        {"rtzk": one, "zookeeper": summary([Kill(400.0, False)])}, "3 servers", tmp_path / "p.png"
    )
    assert path.stat().st_size > 1000
