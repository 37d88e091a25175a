"""One test for each claim of the RT-ZooKeeper paper about the protocol, named after it, with its section."""

import msgspec
import pytest
from zab_ensemble import Ensemble

from lockstep.coordination.zab.epoch_table import EpochTable
from lockstep.coordination.zab.interface import (
    Following,
    Leading,
    Looking,
    NotServing,
    Proposed,
    ToLeader,
    counter_of,
    epoch_of,
    zxid_of,
)
from lockstep.coordination.zab.messages import CnxReady, Quorum, Refused, TableUpdate, Vote
from lockstep.coordination.zab.records import Epochs, Logged
from lockstep.coordination.zab.settings import VARIANTS, Settings, Variant, paper, variant

RTZK, LITE, VANILLA = variant("rtzk"), variant("rtzk-l"), variant("vanilla")


def served(name: Variant, count: int, **rest: float) -> Ensemble:
    ensemble = Ensemble(count, variant(name), **rest)
    ensemble.start()
    ensemble.settle()
    return ensemble


# Section 2: ZooKeeper and ZAB.


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("count", [3, 5, 7, 9])
def test_2_1_an_ensemble_of_2f_plus_1_tolerates_f_crashes(name: Variant, count: int) -> None:
    ensemble = served(name, count)
    for f in range(1, count // 2 + 1):
        ensemble.crash(ensemble.leader())
        ensemble.settle()
        ensemble.propose(b"%d" % f)
        ensemble.run(0.1)
        assert all(host.applied[-1][1] == b"%d" % f for host in ensemble.running())


def test_2_1_the_sequence_starts_anew_in_each_epoch_and_zxids_only_grow() -> None:
    ensemble = served("rtzk", 3)
    ensemble.propose(b"a", b"b")
    ensemble.run(0.1)
    ensemble.crash(ensemble.leader())
    ensemble.settle()
    ensemble.propose(b"c")
    ensemble.run(0.1)
    zxids = [zxid for zxid, _ in ensemble.running()[0].applied]
    assert [counter_of(zxid) for zxid in zxids] == [1, 2, 1]
    assert epoch_of(zxids[2]) > epoch_of(zxids[1]) == epoch_of(zxids[0])
    assert zxids == sorted(zxids)


@pytest.mark.parametrize("name", VARIANTS)
def test_2_2_the_server_with_the_latest_transaction_is_elected(name: Variant) -> None:
    ensemble = served(name, 3)
    leader = ensemble.leader()
    behind = max(id for id in ensemble.hosts if id != leader)  # it would win by its id
    ensemble.isolate(behind)
    ensemble.propose(b"only two have this")
    ensemble.run(0.02)
    ensemble.crash(leader)
    ensemble.heal()
    ensemble.settle()
    assert ensemble.leader() != behind
    assert ensemble.hosts[behind].applied[-1][1] == b"only two have this"


@pytest.mark.parametrize("name", VARIANTS)
def test_2_2_an_elected_leader_starts_an_epoch_above_every_older_one(name: Variant) -> None:
    ensemble = served(name, 3)
    epochs = [ensemble.hosts[ensemble.leader()].server.epoch]
    for _ in range(4):
        crashed = ensemble.leader()
        ensemble.crash(crashed)
        ensemble.settle()
        epochs.append(ensemble.hosts[ensemble.leader()].server.epoch)
        ensemble.start(crashed)
        ensemble.settle()
    assert epochs == sorted(set(epochs))


def test_2_2_only_a_server_in_the_service_phase_takes_requests() -> None:
    ensemble = Ensemble(3, RTZK)
    ensemble.start()
    ensemble.command(1, ToLeader(b"early"))
    assert isinstance(ensemble.hosts[1].replies[-1], NotServing)
    ensemble.settle()
    before = len(ensemble.hosts[1].replies)
    ensemble.command(1, ToLeader(b"now"))
    assert len(ensemble.hosts[1].replies) == before


def test_2_2_without_a_quorum_all_go_back_to_election() -> None:
    ensemble = served("rtzk", 3)
    leader = ensemble.leader()
    ensemble.crash(*(id for id in ensemble.hosts if id != leader))
    ensemble.until(lambda: isinstance(ensemble.hosts[leader].roles[-1], Looking), RTZK.detection + 0.1)


# Section 3.1: election.


def test_3_1_1_votes_compare_epoch_then_zxid_then_id_and_the_larger_wins() -> None:
    votes = [Vote(2, 1, 1), Vote(1, 9, 3), Vote(1, 9, 2), Vote(1, 8, 3)]
    assert sorted(votes, reverse=True) == votes


def test_3_1_1_if_all_notice_at_once_one_finalize_wait_is_enough() -> None:
    ensemble = served("vanilla", 5)
    ensemble.crash(ensemble.leader())
    since = ensemble.now
    took = ensemble.until(lambda: any(s.name == "FollowerInfo" and s.at > since for s in ensemble.sent))
    assert VANILLA.finalize_wait < took < 2 * VANILLA.finalize_wait


def jittered(settings: Settings, jitter: float) -> float:
    """Figure 3: the two followers notice the leader's death apart; how long until both know the new one."""
    ensemble = Ensemble(3, settings)
    ensemble.start()
    ensemble.settle()
    ensemble.propose(b"x")
    ensemble.run(0.1)
    leader = ensemble.leader()
    early = max(id for id in ensemble.hosts if id != leader)  # it has the larger vote
    late = min(id for id in ensemble.hosts if id != leader)
    crashed_at = ensemble.now
    ensemble.crash(leader, noticed={early: 0.001, late: 0.001 + jitter})
    ensemble.until(lambda: any(s.name == "FollowerInfo" and s.at > crashed_at for s in ensemble.sent))
    return ensemble.now - crashed_at


def test_3_1_1_jitter_costs_fle_further_finalize_waits() -> None:
    """Figure 3(b): the late one's vote cannot override, and only the next timeout re-sends the first."""
    assert jittered(VANILLA, 0.010) > 2 * VANILLA.finalize_wait - 0.010


def test_3_1_1_fle_answers_a_looking_peer_whose_logical_clock_lags_behind() -> None:
    """The paper's step 2 says "ignored"; ZooKeeper's own receiver answers, or the two would wait for a timeout."""
    ensemble = served("vanilla", 3)
    leader = ensemble.leader()
    late, ahead = sorted(id for id in ensemble.hosts if id != leader)
    ensemble.hosts[ahead].server.election.round += 5  # elections that the other has not taken part in
    ensemble.crash(leader, noticed={ahead: 0.001, late: 0.011})
    took = ensemble.until(lambda: ensemble.leader() not in (0, leader))
    assert ensemble.leader() == ahead
    assert took < 1.5 * VANILLA.finalize_wait


def test_3_1_2_fce_converges_in_one_finalize_wait_despite_jitter() -> None:
    """Figure 3(c): the vote is re-sent until the delayed server has noticed."""
    slow = msgspec.structs.replace(LITE, finalize_wait=0.2)
    took = jittered(slow, 0.010)
    assert slow.finalize_wait < took < slow.finalize_wait + 0.010 + 0.030


def test_3_1_2_resends_to_a_healthy_ensemble_are_rate_limited() -> None:
    """A server that cannot reach the leader, only a follower of it, must not flood that follower."""
    ensemble = served("rtzk", 3)
    leader = ensemble.leader()
    lost, other = (id for id in ensemble.hosts if id != leader)
    ensemble.cut |= {(lost, leader), (leader, lost)}
    ensemble.run(2.0)
    since = ensemble.now
    ensemble.run(1.0)
    votes = [s for s in ensemble.sent if s.at >= since and s.sender == lost and s.to == other]
    assert 0 < len(votes) <= 2 / RTZK.resend_most


def test_3_1_2_a_late_voter_joins_the_established_leader_without_an_election() -> None:
    ensemble = served("rtzk", 3)
    leader, late = ensemble.leader(), 1 if ensemble.leader() != 1 else 2
    epoch = ensemble.hosts[leader].server.epoch
    ensemble.crash(late)
    ensemble.run(0.1)
    ensemble.start(late)
    ensemble.settle()
    assert ensemble.hosts[late].roles[-1] == Following(leader, epoch)
    assert ensemble.hosts[leader].roles[-1] == Leading(epoch)


# Section 3.2: the quorum channel.


def test_3_2_1_a_refused_follower_waits_a_fixed_second() -> None:
    """Figure 4(a): the follower is quicker than the leader."""
    ensemble = served("vanilla", 3)
    leader = ensemble.leader()
    new, follower = sorted((id for id in ensemble.hosts if id != leader), reverse=True)
    # The new leader notices last, so that its finalize wait ends last.
    ensemble.crash(leader, noticed={new: 0.001, follower: 0.001})
    ensemble.run(VANILLA.finalize_wait / 2)
    host = ensemble.hosts[new]
    host.timers.pop("finalize")
    ensemble._timer(host, "finalize", VANILLA.finalize_wait)
    since = ensemble.now
    ensemble.settle()
    attempts = [s.at for s in ensemble.sent if s.name == "FollowerInfo" and s.at > since]
    refused = [s for s in ensemble.sent if isinstance(s.body, Refused) and s.at > since]
    assert refused and attempts[1] - attempts[0] == pytest.approx(1.0, abs=0.01)


def late_leader(drop_ready: bool) -> list[float]:
    """QCN with a follower that is done before the leader: when it connects after the leader is ready."""
    ensemble = served("rtzk-l", 3)
    leader = ensemble.leader()
    new = max(id for id in ensemble.hosts if id != leader)
    ensemble.crash(leader)
    ensemble.run(LITE.finalize_wait / 2)
    host = ensemble.hosts[new]
    host.timers.pop("finalize")
    ensemble._timer(host, "finalize", LITE.finalize_wait)
    ensemble.drop = lambda sent: drop_ready and isinstance(sent.message, CnxReady)
    since = ensemble.now
    ensemble.settle()
    ready = min(s.at for s in ensemble.sent if isinstance(s.message, CnxReady) and s.at > since)
    return [s.at - ready for s in ensemble.sent if s.name == "FollowerInfo" and s.at > since]


def test_3_2_2_with_cnx_ready_a_follower_connects_once_and_at_once() -> None:
    attempts = late_leader(drop_ready=False)
    assert len(attempts) == 1
    assert 0 < attempts[0] <= 0.001


def test_3_2_2_a_lost_cnx_ready_has_a_fallback() -> None:
    attempts = late_leader(drop_ready=True)
    assert attempts[-1] <= LITE.connect_retry


def test_3_2_2_a_stale_cnx_ready_is_ignored() -> None:
    ensemble = served("rtzk-l", 3)
    leader = ensemble.leader()
    follower = min(id for id in ensemble.hosts if id != leader)
    sent = len(ensemble.sent)
    host = ensemble.hosts[follower]
    ensemble._carry(host, host.server.on_message(str(leader), CnxReady(0)))
    assert len(ensemble.sent) == sent


def test_3_2_2_the_quorum_star_is_separate_from_the_election_mesh() -> None:
    ensemble = served("rtzk", 5)
    leader = ensemble.leader()
    assert ensemble.quorum == {frozenset((leader, id)) for id in ensemble.hosts if id != leader}
    assert not any(isinstance(s.message, Quorum) for s in ensemble.sent if leader not in (s.sender, s.to))


# Section 3.3: recovery and DEP.


def recovered_with_slow_disk(name: Variant, disk: float) -> tuple[float, Ensemble]:
    ensemble = served(name, 3)
    ensemble.run(0.1)
    leader = ensemble.leader()
    ensemble.disk = disk
    ensemble.crash(leader)
    since = ensemble.now
    ensemble.until(ensemble.serving)
    return ensemble.now - since, ensemble


def test_3_3_1_vanilla_recovery_waits_for_four_epoch_writes() -> None:
    slow, _ = recovered_with_slow_disk("rtzk-l", 0.300)
    quick, _ = recovered_with_slow_disk("rtzk-l", 0.0)
    assert slow - quick == pytest.approx(4 * 0.300, abs=0.05)


def test_3_3_2_dep_recovery_waits_for_no_disk() -> None:
    slow, _ = recovered_with_slow_disk("rtzk", 0.300)
    quick, _ = recovered_with_slow_disk("rtzk", 0.0)
    assert slow - quick < 0.001


def test_3_3_2_with_dep_the_first_transaction_waits_for_one_write() -> None:
    """The epoch is written with it: a disk that had begun to write the epoch alone would cost a second one."""
    took = {}
    for disk in (0.0, 0.300):
        _, ensemble = recovered_with_slow_disk("rtzk", disk)
        ensemble.propose(b"first")
        leader = ensemble.hosts[ensemble.leader()]
        took[disk] = ensemble.until(lambda host=leader: host.applied[-1:] and host.applied[-1][1] == b"first")  # type: ignore[misc]
    assert took[0.300] - took[0.0] == pytest.approx(0.300, abs=0.001)


@pytest.mark.parametrize("moment", [0.090 + step * 0.0005 for step in range(20)])
def test_3_3_2_a_promise_that_comes_just_before_the_history_is_on_disk_holds_nobody_up(moment: float) -> None:
    """The table is committed. Until the disk has the history, another follower promises the same epoch."""
    ensemble = served("rtzk", 5)
    ensemble.run(0.1)
    leader = ensemble.leader()
    ensemble.disk = 0.100
    ensemble.propose(b"on its way to the disks")
    ensemble.run(0.002)
    late = min(id for id in ensemble.hosts if id != leader)
    ensemble.crash(leader, noticed={late: moment})
    ensemble.until(ensemble.serving, 2.0)


def test_3_3_2_with_dep_an_idle_ensemble_writes_its_epoch_within_a_beat() -> None:
    _, ensemble = recovered_with_slow_disk("rtzk", 0.001)
    epoch = ensemble.hosts[ensemble.leader()].server.epoch
    ensemble.run(RTZK.beat + 0.002)
    assert all(ensemble.writes(host.id, Epochs)[-1].current == epoch for host in ensemble.running())


def test_figure_5_the_phases_exchange_their_packets_in_order() -> None:
    ensemble = served("rtzk-l", 3)
    ensemble.crash(ensemble.leader())
    since = ensemble.now + 0.0001
    ensemble.settle()
    quorum = [s.name for s in ensemble.sent if s.at >= since and isinstance(s.message, Quorum)]
    order = ["FollowerInfo", "LeaderInfo", "AckEpoch", "NewLeader", "AckNewLeader", "UpToDate"]
    assert [name for name in quorum if name in order] == order


def test_table_1_an_epoch_table_has_version_size_and_both_epochs_of_all_servers() -> None:
    ensemble = served("rtzk", 3)
    ensemble.run(0.1)
    table = ensemble.hosts[1].server.core.table
    assert (table.num_servers, set(table.accepted), set(table.current)) == (3, {1, 2, 3}, {1, 2, 3})
    assert table.version > 0


def test_3_3_2_tables_merge_by_entrywise_maximum_and_take_the_latest_version() -> None:
    one = EpochTable(3, 2, {1: 5, 2: 1}, {1: 4, 2: 1})
    other = EpochTable(4, 2, {1: 2, 2: 6}, {1: 5, 2: 0})
    merged = EpochTable(4, 2, {1: 5, 2: 6}, {1: 5, 2: 1})
    assert one.merge(other) == other.merge(one) == merged
    assert merged.merge(one) == merged


def test_3_3_2_only_the_leader_updates_the_table_and_a_quorum_commits_it_twice() -> None:
    ensemble = served("rtzk", 3)
    leader = ensemble.leader()
    updates = [s for s in ensemble.sent if isinstance(s.message, TableUpdate)]
    assert {s.sender for s in updates} == {leader}
    assert len({s.message.table.version for s in updates}) == 2
    names = [
        s.name
        for s in ensemble.sent
        if s.name in ("AckEpoch", "TableUpdate", "TableAck", "NewLeader", "UpToDate")
    ]
    first_ack, first_new = names.index("TableAck"), names.index("NewLeader")
    assert names.index("AckEpoch") < names.index("TableUpdate") < first_ack < first_new
    second = names.index("TableUpdate", first_new)
    assert second < names.index("TableAck", second) < names.index("UpToDate")


def test_3_3_2_the_table_is_flooded_before_the_election() -> None:
    ensemble = served("rtzk", 3)
    leader = ensemble.leader()
    ensemble.crash(leader)
    since = ensemble.now + 0.0001
    ensemble.settle()
    flood = [s for s in ensemble.sent if s.at >= since and s.name in ("TableNotice", "Notification")]
    assert flood[0].name == "TableNotice"
    assert not any(isinstance(s.message, Quorum) for s in flood)


@pytest.mark.parametrize("count", [3, 5])
def test_3_3_2_after_a_total_outage_no_epoch_is_issued_again(count: int) -> None:
    """The memory of all is lost, and the disk was too slow to note anything but the ceilings."""
    ensemble = served("rtzk", count)
    used = ensemble.hosts[ensemble.leader()].server.epoch
    ensemble.run(1.0)
    ensemble.crash(*ensemble.hosts)
    ensemble.start()
    ensemble.settle()
    assert ensemble.hosts[ensemble.leader()].server.epoch > used


def test_3_3_2_with_one_restarted_empty_and_one_dead_no_epoch_is_issued_again() -> None:
    """Epoch e is known to A and B only; A dies, B forgets, C never knew: B's ceiling speaks for it."""
    ensemble = served("rtzk", 3)
    first = ensemble.leader()
    others = [id for id in ensemble.hosts if id != first]
    unaware = others[0]
    ensemble.isolate(unaware)
    ensemble.crash(first)
    ensemble.start(first)
    ensemble.until(lambda: ensemble.serving())
    a = ensemble.leader()
    b = next(id for id in ensemble.hosts if id not in (a, unaware))
    used = ensemble.hosts[a].server.epoch
    assert ensemble.hosts[unaware].server.core.accepted < used
    ensemble.crash(a)
    ensemble.crash(b)
    ensemble.heal()
    ensemble.start(b)
    ensemble.settle()
    assert ensemble.hosts[ensemble.leader()].server.epoch > used


def test_3_3_2_a_server_without_memory_abstains_until_a_majority_with_memory_answers() -> None:
    ensemble = served("rtzk", 3)
    leader, back = ensemble.leader(), 1 if ensemble.leader() != 1 else 2
    epoch = ensemble.hosts[leader].server.epoch
    ensemble.crash(back)
    ensemble.run(0.05)
    ensemble.start(back)
    since = ensemble.now
    ensemble.settle()
    assert ensemble.hosts[leader].server.epoch == epoch, "an exact answer spares the ensemble a new epoch"
    assert not [s for s in ensemble.sent if s.at >= since and s.sender == back and s.name == "Notification"]
    assert ensemble.hosts[back].server.core.accepted == epoch


def test_3_3_synchronised_transactions_are_on_disk_before_newleader_is_acknowledged() -> None:
    for name in VARIANTS:
        ensemble = served(name, 3, disk=0.002)
        leader, late = ensemble.leader(), 1 if ensemble.leader() != 1 else 2
        ensemble.crash(late)
        ensemble.run(0.05)
        ensemble.propose(b"missed")
        ensemble.run(0.1)
        ensemble.disk = 0.050
        ensemble.start(late)
        since = ensemble.now
        seen: list[bool] = []

        def watch(
            sent: object, ensemble: Ensemble = ensemble, late: int = late, seen: list[bool] = seen
        ) -> bool:
            if getattr(sent, "name", "") == "AckNewLeader" and getattr(sent, "sender", 0) == late:
                seen.append(any(record.txns == (b"missed",) for record in ensemble.writes(late, Logged)))
            return False

        ensemble.drop = watch
        ensemble.settle()
        assert seen == [True]
        assert ensemble.now - since >= 0.050
        assert ensemble.leader() == leader


def test_4_1_a_false_leader_steps_back_so_that_safety_never_rests_on_w() -> None:
    """Figure 6(a): the up-to-date server's votes come too late, the others agree without it."""
    ensemble = Ensemble(3, msgspec.structs.replace(RTZK, finalize_wait=0.0, table_wait=0.0))
    ensemble.start()
    ensemble.settle()
    leader = ensemble.leader()
    stale = next(id for id in ensemble.hosts if id != leader)
    fresh = next(id for id in ensemble.hosts if id not in (leader, stale))
    ensemble.cut |= {(leader, stale), (stale, leader)}
    ensemble.propose(b"committed without the stale one")
    ensemble.run(0.02)
    ensemble.cut.clear()
    ensemble.crash(leader)
    ensemble.drop = lambda sent: sent.sender == fresh and sent.name == "Notification" and ensemble.now < 1.0
    ensemble.settle(30)
    ensemble.run(0.1)
    assert all(host.applied[-1][1] == b"committed without the stale one" for host in ensemble.running())


def test_table_3_is_available_as_settings() -> None:
    assert paper().finalize_wait == paper().table_wait == 0.020
    assert VANILLA.finalize_wait == 0.200
    assert VANILLA.connect_retry == 1.0


@pytest.mark.parametrize("count", range(1, 10))
def test_ensembles_of_1_to_9_servers_serve(count: int) -> None:
    ensemble = served("rtzk", count)
    assert isinstance(ensemble.propose(b"x"), Proposed)
    ensemble.run(0.1)
    epoch = ensemble.hosts[ensemble.leader()].server.epoch
    assert all(host.applied == [(zxid_of(epoch, 1), b"x")] for host in ensemble.running())
    assert all(ensemble.writes(id, Epochs) for id in ensemble.hosts), "lazily, but written"
