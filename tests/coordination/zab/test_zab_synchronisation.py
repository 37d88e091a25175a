"""Followers that fell behind, went astray or lost everything are brought to the leader's history."""

import msgspec
import pytest
from zab_ensemble import Ensemble, pack

from lockstep.coordination.zab.history import History, Recovered
from lockstep.coordination.zab.interface import Checkpoint, Following, Looking, zxid_of
from lockstep.coordination.zab.records import Ceiling, Checkpointed, Epochs, Logged, Member, Truncated
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import VARIANTS, Settings, Variant, variant
from lockstep.errors import LockstepError, UsageError


def served(name: Variant = "rtzk", count: int = 3, **changes: int) -> Ensemble:
    ensemble = Ensemble(count, msgspec.structs.replace(variant(name), **changes))
    ensemble.start()
    ensemble.settle()
    return ensemble


def a_follower(ensemble: Ensemble) -> int:
    return next(id for id in ensemble.hosts if id != ensemble.leader())


@pytest.mark.parametrize("name", VARIANTS)
def test_a_follower_that_missed_transactions_gets_a_diff(name: Variant) -> None:
    ensemble = served(name)
    ensemble.propose(b"a")
    ensemble.run(0.1)
    late = a_follower(ensemble)
    ensemble.crash(late)
    ensemble.run(0.05)
    ensemble.propose(b"b", b"c")
    ensemble.run(0.1)
    since = ensemble.now
    ensemble.start(late)
    ensemble.settle()
    sync = [s.name for s in ensemble.sent if s.at >= since and s.to == late]
    assert "Diff" in sync and "Trunc" not in sync and "Snap" not in sync
    assert [txn for _, txn in ensemble.hosts[late].applied] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_deposed_leader_forgets_what_nobody_else_has(name: Variant) -> None:
    ensemble = served(name)
    old = ensemble.leader()
    ensemble.isolate(old)
    ensemble.propose(b"never committed", leader=old)
    ensemble.until(lambda: ensemble.leader() not in (0, old))
    ensemble.propose(b"kept")
    ensemble.run(0.1)
    ensemble.heal()
    ensemble.settle()
    assert any(s.name == "Trunc" and s.to == old for s in ensemble.sent)
    assert [[txn for _, txn in host.applied] for host in ensemble.running()] == [[b"kept"]] * 3
    assert ensemble.writes(old, Truncated)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_follower_too_far_behind_gets_a_snapshot_in_pieces(name: Variant) -> None:
    ensemble = served(name, log_keep=0, snapshot_chunk=7)
    late = a_follower(ensemble)
    ensemble.crash(late)
    ensemble.run(0.05)
    for txn in (b"a", b"b", b"c"):
        ensemble.propose(txn)
    ensemble.run(0.1)
    leader = ensemble.hosts[ensemble.leader()]
    ensemble.command(leader.id, Checkpoint(leader.applied[-1][0], pack(leader.applied)))
    ensemble.run(0.1)
    ensemble.start(late)
    ensemble.settle()
    assert sum(s.name == "Snap" and s.to == late for s in ensemble.sent) > 1
    assert ensemble.hosts[late].applied == leader.applied
    assert ensemble.hosts[late].restored
    ensemble.crash(late)
    ensemble.start(late)
    assert ensemble.hosts[late].applied == leader.applied, "restored from its own disk"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_server_that_lost_its_disk_rejoins_and_counts_only_once_it_is_synchronised(name: Variant) -> None:
    ensemble = served(name)
    ensemble.propose(b"a")
    ensemble.run(0.1)
    wiped = a_follower(ensemble)
    ensemble.crash(wiped, wipe=True)
    ensemble.run(0.05)
    ensemble.start(wiped)
    since = ensemble.now
    ensemble.settle()
    infos = [s.body for s in ensemble.sent if s.at >= since and s.name == "FollowerInfo"]
    assert [info.voting for info in infos] == [False]
    ensemble.run(0.1)
    assert ensemble.writes(wiped, Member)
    assert ensemble.hosts[wiped].applied == ensemble.hosts[ensemble.leader()].applied


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wiped_server_and_a_stale_one_do_not_outvote_the_one_that_knows(name: Variant) -> None:
    """The transaction is on two of three disks, and one of the two is lost: it must wait for the other."""
    ensemble = served(name)
    leader = ensemble.leader()
    stale, wiped = (id for id in ensemble.hosts if id != leader)
    ensemble.isolate(stale)
    ensemble.propose(b"precious")
    ensemble.run(0.1)
    ensemble.crash(leader)
    ensemble.crash(wiped, wipe=True)
    ensemble.heal()
    ensemble.start(wiped)
    ensemble.run(3.0)
    assert all(isinstance(ensemble.hosts[id].roles[-1], Looking) for id in (stale, wiped))
    ensemble.start(leader)
    ensemble.settle()
    ensemble.run(0.1)
    assert all(host.applied[-1][1] == b"precious" for host in ensemble.running())


def test_a_silent_leader_is_noticed_within_300_ms() -> None:
    ensemble = served()
    leader = ensemble.leader()
    ensemble.isolate(leader)
    took = ensemble.until(
        lambda: all(isinstance(h.roles[-1], Looking) for h in ensemble.running() if h.id != leader), 1.0
    )
    assert took <= Settings().detection + 0.001 <= 0.302
    ensemble.until(lambda: ensemble.leader() not in (0, leader), 1.0)


def test_a_closed_connection_is_noticed_at_once() -> None:
    ensemble = served()
    leader = ensemble.leader()
    ensemble.crash(leader)
    took = ensemble.until(lambda: ensemble.leader() not in (0, leader))
    assert took < 0.025


def test_a_lost_message_of_the_leader_ends_the_attempt_and_is_made_good() -> None:
    ensemble = served()
    victim = a_follower(ensemble)
    ensemble.drop = lambda sent: sent.name == "Proposal" and sent.to == victim
    ensemble.propose(b"lost")
    ensemble.run(0.01)
    ensemble.drop = lambda sent: False
    ensemble.propose(b"next")
    ensemble.run(0.05)
    ensemble.settle()
    ensemble.run(0.1)
    assert [txn for _, txn in ensemble.hosts[victim].applied] == [b"lost", b"next"]
    assert isinstance(ensemble.hosts[victim].roles[-1], Following)


def test_two_histories_share_what_lies_before_their_last_common_epoch() -> None:
    leader, follower = History(), History()
    for history in (leader, follower):
        history.append(zxid_of(1, 1), [b"a", b"b"])
    follower.append(zxid_of(3, 1), [b"astray"])
    leader.append(zxid_of(2, 1), [b"c"])
    leader.append(zxid_of(4, 1), [b"d"])
    assert leader.common(follower.tails) == zxid_of(1, 2)
    assert leader.common(()) == 0
    leader.checkpointed(zxid_of(2, 1), b"state")
    assert leader.common(follower.tails) is None
    assert leader.common((zxid_of(2, 1),)) == zxid_of(2, 1)


def test_recovery_replays_truncations_and_starts_at_the_last_checkpoint() -> None:
    one = zxid_of(1, 1)
    records = [
        Member(),
        Ceiling(64),
        Logged(one, (b"a", b"b", b"c")),
        Truncated(one + 1),
        Epochs(2, 2),
        Checkpointed(one, b"state", accepted=2, current=2, ceiling=64, member=True),
        Logged(zxid_of(2, 1), (b"d",)),
    ]
    found = Recovered(records)
    assert (found.member, found.accepted, found.current, found.ceiling) == (True, 2, 2, 64)
    assert found.history.checkpoint == one
    assert [txns for _, txns in found.history.after(one)] == [(b"b",), (b"d",)]
    shortened = Recovered([records[2], *records[5:]])
    assert shortened.history.last == zxid_of(2, 1)


def test_a_purged_log_does_not_claim_to_begin_at_the_beginning() -> None:
    """Only what follows the checkpoint was kept, and it is the first of a later epoch."""
    before, after = zxid_of(8, 10), zxid_of(9, 1)
    records = [
        Logged(after, (b"x",)),
        Checkpointed(before, b"state", accepted=9, current=9, ceiling=64, member=True),
    ]
    history = Recovered(records).history
    assert (history.start, history.last) == (before, after)
    assert history.common((before,)) == before
    assert history.common((zxid_of(7, 1),)) is None


def test_a_log_whose_beginning_is_missing_is_refused() -> None:
    with pytest.raises(LockstepError, match="no snapshot covers"):
        Recovered([Logged(zxid_of(1, 9), (b"x",))])


@pytest.mark.parametrize(
    ("me", "servers"), [(4, [1, 2, 3]), (1, list(range(1, 11))), (0, [0, 1]), (1, [1, 256])]
)
def test_an_ensemble_that_cannot_be_is_refused(me: int, servers: list[int]) -> None:
    with pytest.raises(UsageError, match="cannot be part"):
        Server(me, servers)


def test_a_leader_whose_founders_all_restarted_still_commits_or_makes_room() -> None:
    """Nothing was proposed in the epoch yet, and no follower had it on disk when it crashed."""
    ensemble = Ensemble(3, variant("rtzk"), disk=0.2)
    ensemble.start()
    first = ensemble.settle()
    for follower in [id for id in ensemble.hosts if id != first]:
        ensemble.crash(follower)
        ensemble.start(follower)
        ensemble.settle()
    ensemble.until(lambda: ensemble.leader() != 0)
    ensemble.settle()
    ensemble.propose(b"x")
    ensemble.run(2.0)
    if not all(host.applied for host in ensemble.running()):
        ensemble.settle()
        ensemble.propose(b"x")
        ensemble.run(2.0)
    assert all(host.applied[-1][1] == b"x" for host in ensemble.running())
