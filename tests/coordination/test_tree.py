"""The tree: what clients see of a node, what a snapshot keeps, what it costs."""

import asyncio
import random
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from solo_service import Caller, Solo, creation, deletion

from lockstep.coordination.preparation import Preparation
from lockstep.coordination.snapshots import DamagedSnapshot, SnapshotStore, encode_chunks, read_chunks
from lockstep.coordination.transactions import Created, SessionOpened, Submission, Transaction, first_sequence
from lockstep.coordination.tree import OPEN_ACL, Tree
from lockstep.coordination.wire.codes import CONTAINER_OWNER, Code, Mode, Op
from lockstep.coordination.wire.jute import Reader, pack_int, pack_string
from lockstep.coordination.wire.records import Acl, SetAcl, pack_acl, read_stat


def test_a_stat_counts_like_zookeepers() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/a", b"12345")
    for name in ("x", "y"):
        caller.create(f"/a/{name}")
    caller.ask(Op.DELETE, deletion("/a/x"))
    caller.set("/a", b"123")
    node = solo.service.tree.nodes["/a"]
    stat = read_stat(Reader(node.stat()))
    assert (stat.version, stat.cversion, stat.aversion) == (1, 3, 0)
    assert (stat.num_children, stat.data_length, stat.ephemeral_owner) == (1, 3, 0)
    assert stat.czxid < stat.pzxid < stat.mzxid


def test_sequential_names_never_come_twice() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.create("/q")
    names = []
    for _ in range(3):
        path = caller.create("/q/n-", mode=Mode.PERSISTENT_SEQUENTIAL)[1].string()
        names.append(path)
        caller.ask(Op.DELETE, deletion(path))
    assert names == [f"/q/n-{number:010d}" for number in range(3)]


def test_requests_see_what_was_prepared_before_them_and_is_not_committed_yet() -> None:
    solo = Solo()
    caller = Caller(solo)
    first = caller.send(Op.CREATE, creation("/a"))
    second = caller.send(Op.CREATE, creation("/a"))
    below = caller.send(Op.CREATE, creation("/a/b"))
    full = caller.send(Op.DELETE, deletion("/a"))
    gone = caller.send(Op.DELETE, deletion("/a/b"))
    last = caller.send(Op.DELETE, deletion("/a"))
    solo.commit()
    assert caller.taken() == [
        (first, 0),
        (second, Code.NODE_EXISTS),
        (below, 0),
        (full, Code.NOT_EMPTY),
        (gone, 0),
        (last, 0),
    ]


def test_a_closing_session_takes_ephemerals_that_are_only_proposed() -> None:
    solo = Solo()
    caller = Caller(solo)
    caller.send(Op.CREATE, creation("/e", mode=Mode.EPHEMERAL))
    caller.send(Op.CLOSE_SESSION)
    other = Caller(solo)
    assert "/e" not in solo.service.tree.nodes
    assert other.create("/e")[0] == 0


@pytest.mark.parametrize(
    ("request_body", "code"),
    [
        (creation("relative"), Code.BAD_ARGUMENTS),
        (creation("/a//b"), Code.NO_NODE),
        (creation("/a/"), Code.NO_NODE),
        (creation("/.."), Code.BAD_ARGUMENTS),
        (creation("/a\x01"), Code.BAD_ARGUMENTS),
        (creation("/missing/b"), Code.NO_NODE),
        (creation("/"), Code.BAD_ARGUMENTS),
        (creation("/x", mode=9), Code.BAD_ARGUMENTS),
        (creation("/x", mode=Mode.CONTAINER), Code.BAD_ARGUMENTS),
        (creation("/x", mode=Mode.TTL), Code.BAD_ARGUMENTS),
    ],
)
def test_impossible_creations_get_zookeepers_codes(request_body: bytes, code: Code) -> None:
    assert Caller(Solo()).ask(Op.CREATE, request_body)[0] == code


def test_ephemeral_nodes_have_no_children_and_special_nodes_stay() -> None:
    caller = Caller(Solo())
    caller.create("/e", mode=Mode.EPHEMERAL)
    assert caller.create("/e/child")[0] == Code.NO_CHILDREN_FOR_EPHEMERALS
    for path in ("/zookeeper", "/zookeeper/quota", "/zookeeper/config", "/"):
        assert caller.ask(Op.DELETE, deletion(path))[0] == Code.BAD_ARGUMENTS
    assert caller.set("/zookeeper/config", b"x")[0] == Code.NO_AUTH


def test_access_lists_are_kept() -> None:
    solo = Solo()
    owner, stranger, neighbour = Caller(solo), Caller(solo, address="10.9.9.9"), Caller(solo)
    assert owner.ask(Op.AUTH, pack_int(0) + pack_string("digest") + pack_string("bob:secret"))[0] == 0
    for path, acl in (
        ("/mine", (Acl(31, "auth", ""),)),
        ("/net", (Acl(1, "ip", "10.0.0.0/24"), Acl(30, "auth", ""))),
    ):
        owner.create(path, b"private")
        body = pack_string(path) + pack_acl(acl) + pack_int(-1)
        assert owner.ask(Op.SET_ACL, body)[0] == 0
    assert owner.get("/mine")[0] == 0
    assert stranger.get("/mine")[0] == Code.NO_AUTH
    assert stranger.set("/mine", b"x")[0] == Code.NO_AUTH
    assert stranger.create("/mine/child")[0] == Code.NO_AUTH
    assert stranger.ask(Op.GET_ACL, pack_string("/mine"))[0] == Code.NO_AUTH
    assert (neighbour.get("/net")[0], stranger.get("/net")[0]) == (0, Code.NO_AUTH)
    code, body_read = neighbour.ask(Op.GET_ACL, pack_string("/net"))
    assert code == 0
    assert b"bob:x" in body_read._bytes, "no hash of a password for those who may not administer"
    nobody = SetAcl("/net", (Acl(31, "auth", ""),), -1)
    assert stranger.ask(Op.SET_ACL, pack_string("/net") + pack_acl(nobody.acl) + pack_int(-1))[0] == (
        Code.INVALID_ACL
    )


def test_a_wrong_credential_closes_the_connection() -> None:
    caller = Caller(Solo())
    caller.send(Op.AUTH, pack_int(0) + pack_string("kerberos") + pack_string("x"), xid=-4)
    assert caller.taken() == [(-4, Code.AUTH_FAILED)]
    assert caller.port.is_closed


def test_quotas_are_counted_and_hard_ones_enforced_on_demand() -> None:
    for enforced in (False, True):
        solo = Solo(enforce_quota=enforced)
        caller = Caller(solo)
        caller.create("/q", b"1234")
        caller.create("/zookeeper/quota/q")
        caller.create(
            "/zookeeper/quota/q/zookeeper_limits", b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3"
        )
        caller.create("/zookeeper/quota/q/zookeeper_stats", b"")
        caller.create("/q/a", b"12")
        caller.set("/q/a", b"123")
        stats = solo.service.tree.nodes["/zookeeper/quota/q/zookeeper_stats"]
        assert stats.data == b"count=2,bytes=7"
        assert caller.create("/q/b")[0] == 0
        assert caller.create("/q/c")[0] == (Code.QUOTA_EXCEEDED if enforced else 0)
        caller.ask(Op.DELETE, deletion("/q/a"))
        assert stats.data == (b"count=2,bytes=4" if enforced else b"count=3,bytes=4")


def test_a_snapshot_gives_back_the_same_tree(tmp_path: Path) -> None:
    tree = _busy_tree(random.Random(3))
    store = SnapshotStore(tmp_path)
    store._publish("snapshot.0000000000000001", encode_chunks(tree.snapshot()))
    again = store.load(b"snapshot.0000000000000001")
    assert again.digest() == tree.digest()
    assert again.containers == tree.containers
    assert {s: v.ephemerals for s, v in again.sessions.items()} == {
        s: v.ephemerals for s, v in tree.sessions.items()
    }
    assert (again.last_zxid, again.sequences) == (tree.last_zxid, tree.sequences)


def test_every_damaged_byte_of_a_snapshot_is_noticed(tmp_path: Path) -> None:
    blob = b"".join(encode_chunks(_busy_tree(random.Random(4), nodes=20).snapshot()))
    store = SnapshotStore(tmp_path)
    path = tmp_path / "snapshot.0000000000000001"
    for at in range(0, len(blob), 7):
        path.write_bytes(blob[:at] + bytes([blob[at] ^ 0x41]) + blob[at + 1 :])
        with pytest.raises(DamagedSnapshot):
            store.load(path.name.encode())
        path.write_bytes(blob[:at])
        with pytest.raises(DamagedSnapshot), path.open("rb") as file:
            list(read_chunks(file, path))


def test_a_million_small_nodes_fit_into_two_gigabytes() -> None:
    """20,000 nodes are measured; the cost of one, times a million, must stay far below the bound."""
    tracemalloc.start()
    tree = Tree()
    tree.apply(1, Transaction(1, 0, 0, 5, Created("/p", b"", OPEN_ACL, 0, 1)))
    before = tracemalloc.get_traced_memory()[0]
    count = 20_000
    for number in range(count):
        data = number.to_bytes(100, "big")
        txn = Transaction(
            1, 0, 0, 1_700_000_000_000 + number, Created(f"/p/node-{number:07d}", data, OPEN_ACL, 0, number)
        )
        tree.apply(2 + (1 << 32) + number, txn)
    per_node = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert per_node < 1200, f"{per_node:.0f} bytes for a node"


def test_a_request_is_never_prepared_twice() -> None:
    tree = Tree()
    preparation = Preparation(tree)
    submission = Submission(7, 0, Op.SYNC, pack_string("/"))
    assert preparation.prepare(2, submission, 1) is not None
    assert preparation.prepare(2, submission, 1) is None
    assert preparation.prepare(3, submission, 1) is not None, "another server counts for itself"
    reborn = Submission(first_sequence(8) + 1, 0, Op.SYNC, pack_string("/"))
    assert preparation.prepare(2, reborn, 1) is not None, "and so does another life of a server"


def _busy_tree(chance: random.Random, nodes: int = 3000) -> Tree:
    tree = Tree()
    tree.apply(1, Transaction(1, 1, 99, 5, SessionOpened(1000, b"p" * 16)))
    paths = [""]
    for number in range(nodes):
        owner = chance.choice((0, 0, CONTAINER_OWNER, 99))
        parent = chance.choice(paths)
        path = f"{parent}/n{number}"
        acl = OPEN_ACL if number % 5 else (Acl(3, "digest", f"user{number}:x"),)
        tree.apply(
            2 + number, Transaction(1, 2 + number, 99, 6, Created(path, chance.randbytes(9), acl, owner, 1))
        )
        if owner != 99:
            paths.append(path)
    return tree


def test_a_snapshot_is_written_beside_the_server_and_holds_no_connection_open(tmp_path: Path) -> None:
    """The forked child inherits every socket; one that the server closes meanwhile must close for its peer."""

    class SlowTree(Tree):
        def snapshot(self) -> Iterator[bytes]:
            while not (tmp_path / "go").exists():
                time.sleep(0.005)
            yield from super().snapshot()

    async def run() -> None:
        tree = SlowTree()
        tree.apply(5, Transaction(1, 1, 0, 4, Created("/a", b"x", OPEN_ACL, 0, 1)))
        mine, theirs = socket.socketpair()
        store = SnapshotStore(tmp_path / "snapshots")
        saving = asyncio.create_task(store.save(tree))
        await asyncio.sleep(0.05)
        tree.apply(6, Transaction(1, 2, 0, 4, Created("/b", b"x", OPEN_ACL, 0, 2)))
        mine.close()
        theirs.settimeout(5)
        assert theirs.recv(1) == b"", "closed although the child still runs"
        assert not saving.done()
        same = [asyncio.create_task(store.save(tree)) for _ in range(2)]
        await asyncio.sleep(0)
        (tmp_path / "go").touch()
        zxid, reference = await saving
        assert await same[0] == await same[1] == (6, b"snapshot.0000000000000006"), "it is written once"
        assert (zxid, sorted(store.load(reference).children("/"))) == (5, ["a", "zookeeper"])
        theirs.close()

    asyncio.run(run())
