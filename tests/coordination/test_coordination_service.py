"""What ZooKeeper promises its clients, asked of the service over its own bytes."""

import pytest
from solo_service import Caller, Solo, creation, deletion, setting

from lockstep.coordination.clients import Limits
from lockstep.coordination.transactions import decode
from lockstep.coordination.tree import Tree
from lockstep.coordination.wire.codes import Code, Event, Mode, Op
from lockstep.coordination.wire.jute import BadFrame, pack_int, pack_string
from lockstep.coordination.wire.records import (
    Connect,
    SetWatches,
    Stat,
    decode_connect_reply,
    pack_multi,
    pack_set_watches,
    read_stat,
)
from lockstep.coordination.zab.interface import Command, Committed, Propose, zxid_of


def test_replies_come_in_the_order_of_the_requests() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a")
    first = caller.send(Op.SET_DATA, setting("/a", b"1"))
    second = caller.send(Op.GET_DATA, pack_string("/a") + b"\0")
    third = caller.send(Op.SET_DATA, setting("/a", b"2"))
    fourth = caller.send(Op.EXISTS, pack_string("/a") + b"\0")
    assert caller.taken() == [], "a read does not overtake a write of its own connection"
    solo.commit()
    assert [xid for xid, _ in caller.taken()] == [first, second, third, fourth]


def test_a_read_behind_a_write_sees_exactly_that_write() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a")
    caller.send(Op.SET_DATA, setting("/a", b"1"))
    caller.send(Op.GET_DATA, pack_string("/a") + b"\0")
    caller.send(Op.SET_DATA, setting("/a", b"22"))
    solo.commit()
    read = caller.port.frames[1]
    assert b"\0\0\0\1" + b"1" in read
    assert b"22" not in read


def test_an_event_comes_before_any_reply_that_shows_what_it_is_about() -> None:
    solo = Solo()
    watcher, writer = Caller(solo), Caller(solo)
    writer.create("/a")
    watcher.get("/a", watch=True)
    writer.send(Op.SET_DATA, setting("/a", b"new"))
    xid = watcher.send(Op.SYNC, pack_string("/"))
    read = watcher.send(Op.GET_DATA, pack_string("/a") + b"\0")
    solo.commit()
    assert watcher.taken() == [(-1, Event.DATA_CHANGED), (xid, 0), (read, 0)]


def test_a_watch_fires_once_and_a_persistent_one_every_time() -> None:
    solo = Solo()
    once, always, writer = Caller(solo), Caller(solo), Caller(solo)
    writer.create("/a")
    once.get("/a", watch=True)
    always.ask(Op.ADD_WATCH, pack_string("/a") + pack_int(0))
    for data in (b"1", b"2"):
        writer.set("/a", data)
    assert once.taken() == [(-1, Event.DATA_CHANGED)]
    assert always.taken() == [(-1, Event.DATA_CHANGED)] * 2


def test_a_recursive_watch_hears_of_everything_below_but_not_of_child_lists() -> None:
    solo = Solo()
    watcher, writer = Caller(solo), Caller(solo)
    watcher.ask(Op.ADD_WATCH, pack_string("/") + pack_int(1))
    writer.create("/a")
    writer.create("/a/b")
    writer.set("/a/b", b"x")
    writer.ask(Op.DELETE, deletion("/a/b"))
    events = [event for _, event in watcher.taken()]
    assert events == [Event.CREATED, Event.CREATED, Event.DATA_CHANGED, Event.DELETED]


def test_a_deletion_reaches_data_and_child_watches_as_one_event() -> None:
    solo = Solo()
    watcher, writer = Caller(solo), Caller(solo)
    writer.create("/a")
    watcher.get("/a", watch=True)
    watcher.ask(Op.GET_CHILDREN, pack_string("/a") + b"\1")
    writer.ask(Op.DELETE, deletion("/a"))
    assert watcher.taken() == [(-1, Event.DELETED)]


def test_writes_wait_through_an_election_and_happen_once() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a")
    xid = caller.send(Op.SET_DATA, setting("/a", b"1"))
    solo.propose()
    assert solo.proposed, "it was proposed"
    solo.lose_leadership()
    during = caller.send(Op.SET_DATA, setting("/a", b"2"))
    read = caller.send(Op.PING, xid=-2)
    assert caller.taken() == [(read, 0)], "the connection stays, pings are answered"
    solo.lead()
    solo.commit()
    assert caller.taken() == [(xid, 0), (during, 0)]
    _, body = caller.get("/a")
    assert body.buffer() == b"2"
    assert read_stat(body).version == 2


def test_a_proposal_that_survives_the_leader_is_not_repeated() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a")
    xid = caller.send(Op.SET_DATA, setting("/a", b"1"))
    solo.propose()
    survivor = list(solo.proposed)
    solo.lose_leadership()
    solo.proposed = survivor  # the next leader had it on disk
    solo.service.on_delivery(_committed(solo))
    solo.lead()
    solo.commit()
    assert caller.taken() == [(xid, 0)]
    assert read_stat_of(caller, "/a").version == 1


def test_a_session_expires_and_takes_its_ephemeral_nodes_with_it() -> None:
    solo = Solo(tick_ms=100)
    owner, other = Caller(solo), Caller(solo)
    owner.create("/mine", mode=Mode.EPHEMERAL)
    other.ask(Op.EXISTS, pack_string("/mine") + b"\1")
    for _ in range(15):
        solo.pass_time(100)
        other.send(Op.PING, xid=-2)
    assert (-1, Event.DELETED) in other.taken()
    assert owner.port.is_closed
    assert other.get("/mine")[0] == Code.NO_NODE


def test_a_clock_that_jumps_expires_nobody_and_times_never_go_back() -> None:
    solo = Solo(tick_ms=100)
    owner = Caller(solo)
    owner.create("/a", mode=Mode.EPHEMERAL)
    times = []
    for error in (3_600_000, -3_600_000, 0):
        solo.clock_error = error
        solo.pass_time(100)
        times.append(read_stat(owner.set("/a", b"x")[1]).mtime)
    assert "/a" in solo.service.tree.nodes
    assert times == sorted(times)


def test_requests_before_the_session_is_open_end_the_connection() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.client.session = 0
    with pytest.raises(BadFrame):
        caller.send(Op.CREATE, creation("/a"))


def test_a_new_leader_gives_every_session_its_full_timeout_again() -> None:
    solo = Solo(tick_ms=100)
    owner = Caller(solo)
    assert owner.timeout == 1000
    owner.create("/mine", mode=Mode.EPHEMERAL)
    solo.pass_time(900)
    solo.lose_leadership()
    solo.now += 500
    solo.lead()
    solo.pass_time(900)
    assert "/mine" in solo.service.tree.nodes
    solo.pass_time(300)
    assert "/mine" not in solo.service.tree.nodes


def test_a_client_that_saw_more_than_this_server_is_refused() -> None:
    solo = Solo()
    ahead = Caller(solo, connect=Connect(0, 1 << 60, 1000, 0, bytes(16), False))
    assert ahead.port.is_closed
    assert ahead.session == 0


def test_a_client_that_is_ahead_only_because_of_an_election_is_let_in_when_it_is_over() -> None:
    solo = Solo()
    first = Caller(solo)
    first.create("/a")
    first.send(Op.SET_DATA, setting("/a", b"x"))
    solo.propose()
    seen = solo.service.tree.last_zxid + 1  # the leader said so to somebody, and died
    survivor = list(solo.proposed)
    solo.lose_leadership()
    again = Caller(solo, connect=Connect(0, seen, 1000, first.session, first.password, False))
    assert not again.port.is_closed
    assert not again.port.frames, "not let in yet"
    solo.proposed = survivor
    solo.service.on_delivery(_committed(solo))
    solo.lead()
    assert decode_connect_reply(again.port.frames[0][4:])[1] == first.session


def test_who_comes_from_a_dead_server_is_let_in_when_it_is_decided_what_became_of_its_last_write() -> None:
    """Else a client that looks whether its write has happened would not find it, and write again."""
    solo = Solo()
    first = Caller(solo)
    first.create("/a")
    first.send(Op.CREATE, creation("/a/b"))
    solo.propose()
    survivor = list(solo.proposed)
    solo.lose_leadership()
    solo.service.closed(first.client)
    connect = Connect(0, solo.service.tree.last_zxid, 1000, first.session, first.password, False)
    again = Caller(solo, connect=connect)
    assert not again.port.is_closed
    assert not again.port.frames, "not let in yet"
    solo.proposed = survivor
    solo.service.on_delivery(_committed(solo))
    solo.lead()
    assert decode_connect_reply(again.port.frames.pop(0)[4:])[1] == first.session
    assert again.get("/a/b")[0] == Code.OK


def test_a_snapshot_from_another_server_sends_clients_away_and_repeats_nothing() -> None:
    solo, twin = Solo(), Solo()
    caller = Caller(solo)
    caller.create("/a")
    caller.get("/a", watch=True)
    caller.send(Op.SET_DATA, setting("/a", b"x"))
    solo.propose()
    survivor = list(solo.proposed)
    solo.lose_leadership()
    twin.service.tree = Tree.restore(solo.service.tree.snapshot())
    twin.service.tree.apply(solo.service.tree.last_zxid + 1, decode(survivor[0]))
    solo.service.restore(Tree.restore(twin.service.tree.snapshot()))
    assert caller.port.is_closed, "it comes back and is told by setWatches what it missed"
    solo.lead()
    solo.propose()
    assert solo.proposed == []
    assert solo.service.outstanding == 0
    assert solo.service.tree.nodes["/a"].version == 1


def test_a_session_is_taken_over_with_its_password_and_only_with_it() -> None:
    solo = Solo()
    first = Caller(solo)
    first.create("/mine", mode=Mode.EPHEMERAL)
    thief = Caller(solo, connect=Connect(0, 0, 1000, first.session, b"x" * 16, False))
    assert thief.timeout == 0
    assert not first.port.is_closed
    second = Caller(solo, connect=Connect(0, 0, 1000, first.session, first.password, False))
    assert second.session == first.session
    assert first.port.is_closed, "a session has one connection"
    assert second.get("/mine")[0] == 0


def test_an_unknown_session_is_told_that_it_expired() -> None:
    solo = Solo()
    stranger = Caller(solo, connect=Connect(0, 0, 1000, 12345, bytes(16), False))
    assert (stranger.timeout, stranger.session) == (0, 0)
    assert stranger.port.is_closed


def test_timeouts_are_negotiated_between_2_and_20_ticks() -> None:
    solo = Solo(tick_ms=100)
    granted = [Caller(solo, connect=Connect(0, 0, asked, 0, bytes(16))).timeout for asked in (1, 700, 10**6)]
    assert granted == [200, 700, 2000]


def test_an_owner_that_asked_for_it_is_noticed_at_once_when_its_connection_ends() -> None:
    solo = Solo()
    swift = Caller(solo, connect=Connect(0, 0, 1000, 0, bytes(16), False, True))
    plain = Caller(solo)
    swift.create("/swift", mode=Mode.EPHEMERAL)
    plain.create("/plain", mode=Mode.EPHEMERAL)
    for caller in (swift, plain):
        solo.service.closed(caller.client)
    solo.commit()
    assert "/swift" not in solo.service.tree.nodes
    assert "/plain" in solo.service.tree.nodes, "plain clients keep plain semantics"


def test_a_moved_session_does_not_end_with_its_old_connection() -> None:
    solo = Solo()
    first = Caller(solo, connect=Connect(0, 0, 1000, 0, bytes(16), False, True))
    first.create("/mine", mode=Mode.EPHEMERAL)
    Caller(solo, connect=Connect(0, 0, 1000, first.session, first.password, False, True))
    solo.service.closed(first.client)
    solo.commit()
    assert "/mine" in solo.service.tree.nodes


def test_a_multi_happens_whole_or_not_at_all() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a")
    good = [(Op.CREATE, creation("/b")), (Op.CHECK, deletion("/a", 0)), (Op.SET_DATA, setting("/a", b"x"))]
    code, _ = caller.ask(Op.MULTI, pack_multi(good))
    assert code == 0
    assert "/b" in solo.service.tree.nodes
    bad = [(Op.CREATE, creation("/c")), (Op.CHECK, deletion("/a", 7)), (Op.DELETE, deletion("/b"))]
    code, body = caller.ask(Op.MULTI, pack_multi(bad))
    codes = []
    while True:
        _, done, _ = body.int32(), body.flag(), body.int32()
        if done:
            break
        codes.append(body.int32())
    assert codes == [Code.OK, Code.BAD_VERSION, Code.RUNTIME_INCONSISTENCY]
    assert "/c" not in solo.service.tree.nodes
    assert "/b" in solo.service.tree.nodes


def test_setwatches_reports_what_was_missed_and_sets_the_rest() -> None:
    solo = Solo()
    caller = Caller(solo)
    for path in ("/changed", "/same", "/parent"):
        caller.create(path)
    seen = solo.service.tree.last_zxid
    caller.set("/changed", b"x")
    caller.create("/parent/child")
    caller.create("/born")
    request = SetWatches(seen, ["/changed", "/same", "/gone"], ["/born", "/unborn"], ["/parent"], [], [])
    caller.send(Op.SET_WATCHES2, pack_set_watches(request), xid=-8)
    events = [event for xid, event in caller.taken() if xid == -1]
    assert events == [Event.DATA_CHANGED, Event.DELETED, Event.CREATED, Event.CHILDREN_CHANGED]
    caller.set("/same", b"x")
    caller.create("/unborn")
    assert [e for x, e in caller.taken() if x == -1] == [Event.DATA_CHANGED, Event.CREATED]


def test_containers_go_when_they_are_empty_again_and_ttl_nodes_when_their_time_is_over() -> None:
    solo = Solo(tick_ms=1000)
    caller = Caller(solo, connect=Connect(0, 0, 20_000, 0, bytes(16), False))
    assert caller.ask(Op.CREATE_CONTAINER, creation("/box", mode=Mode.CONTAINER))[0] == 0
    ttl = creation("/brief", mode=Mode.TTL) + (300).to_bytes(8, "big")
    assert caller.ask(Op.CREATE_TTL, ttl)[0] == 0
    solo.pass_time(200)
    assert {"/box", "/brief"} <= set(solo.service.tree.nodes), "never used is not unused"
    caller.create("/box/child")
    caller.ask(Op.DELETE, deletion("/box/child"))
    solo.pass_time(800)
    assert not {"/box", "/brief"} & set(solo.service.tree.nodes)


def test_a_greedy_connection_is_paused_and_goes_on_later() -> None:
    solo = Solo(limits=Limits(outstanding_per_connection=10))
    caller = Caller(solo)
    caller.create("/a")
    for number in range(20):
        caller.send(Op.SET_DATA, setting("/a", b"%d" % number))
    assert caller.port.is_paused
    solo.commit()
    assert not caller.port.is_paused
    assert len(caller.taken()) == 20


def test_large_requests_travel_in_messages_of_bounded_size() -> None:
    solo = Solo(limits=Limits(outstanding_bytes=8 << 20))
    caller = Caller(solo)
    caller.create("/a")
    sizes: list[int] = []
    command = solo._command

    def note(proposal: Command) -> None:
        assert isinstance(proposal, Propose)
        sizes.append(sum(map(len, proposal.txns)))
        command(proposal)

    solo.service._command = note
    for _ in range(12):
        caller.send(Op.SET_DATA, setting("/a", bytes(1_000_000)))
    assert caller.port.is_paused, "no more is read while so much is under way"
    solo.commit()
    assert [code for _, code in caller.taken()] == [0] * 12
    assert len(sizes) >= 3
    assert max(sizes) < 6_000_000
    assert not caller.port.is_paused


def test_a_disk_that_does_not_keep_up_slows_clients_down() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a")
    solo.service.press(True)
    xid = caller.send(Op.SET_DATA, setting("/a", b"x"))
    assert caller.port.is_paused
    solo.commit()
    assert caller.taken() == [(xid, 0)], "what was taken is answered"
    assert caller.port.is_paused
    solo.service.press(False)
    assert not caller.port.is_paused


def test_clients_are_sent_elsewhere_when_no_leader_comes_back() -> None:
    solo = Solo(grace_ms=500)
    caller = Caller(solo)
    solo.lose_leadership()
    solo.pass_time(400)
    assert not caller.port.is_closed
    solo.pass_time(200)
    assert caller.port.is_closed


def test_unknown_operations_and_broken_bodies_get_zookeepers_codes() -> None:
    solo = Solo()
    caller = Caller(solo)
    assert caller.ask(77)[0] == Code.UNIMPLEMENTED  # type: ignore[arg-type]
    assert caller.ask(Op.RECONFIG)[0] == Code.UNIMPLEMENTED
    assert caller.ask(Op.GET_DATA, b"\0\0\0\x09abc")[0] == Code.MARSHALLING_ERROR
    assert caller.ask(Op.CREATE, b"\0\0\0\x09abc")[0] == Code.MARSHALLING_ERROR


def read_stat_of(caller: Caller, path: str) -> Stat:
    return read_stat(caller.ask(Op.EXISTS, pack_string(path) + b"\0")[1])


def _committed(solo: Solo) -> Committed:
    txns, solo.proposed = tuple(solo.proposed), []
    return Committed(zxid_of(solo.epoch, solo.counter + 1), txns)
