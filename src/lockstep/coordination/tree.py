"""The tree of znodes and the table of sessions: a deterministic state machine over transactions.

Every server applies the same transactions in the same order and so holds the same tree. Nothing is decided
here: the leader has decided already (`preparation.py`). What a node costs in memory matters, since a
million of them must fit into 2 GB: nodes are slotted structs outside the reach of the garbage collector,
equal access lists are shared, and a leaf has no set of children.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from lockstep.coordination import paths, quota
from lockstep.coordination.transactions import (
    AclSet,
    Checked,
    Created,
    DataSet,
    Deleted,
    MultiDone,
    MultiRefused,
    Refused,
    SessionClosed,
    SessionOpened,
    Synced,
    Transaction,
)
from lockstep.coordination.wire.codes import CONTAINER_OWNER, Code, Event, Perm, is_session, owner_ttl
from lockstep.coordination.wire.records import STAT, Acl

OPEN_ACL: tuple[Acl, ...] = (Acl(int(Perm.ALL), "world", "anyone"),)
READ_ACL: tuple[Acl, ...] = (Acl(int(Perm.READ), "world", "anyone"),)
_CHUNK_NODES = 1000
_MAX_SHARED_ACLS = 10_000


class Node(Struct, gc=False):
    """A znode. `cversion` counts creations below it; what clients see is derived from it (see `stat`)."""

    data: bytes | None
    acl: tuple[Acl, ...]
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    children: set[str] | None = None

    def stat(self) -> bytes:
        """The stat as clients read it: its cversion counts creations and deletions of children."""
        children = len(self.children) if self.children else 0
        cversion = self.cversion * 2 - children
        return STAT.pack(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            (cversion + 0x80000000) % 0x100000000 - 0x80000000,
            self.aversion,
            self.owner,
            len(self.data) if self.data else 0,
            children,
            self.pzxid,
        )


class Session(Struct):
    timeout: int
    password: bytes
    close_with_connection: bool
    ephemerals: set[str] = msgspec.field(default_factory=set)


class OpResult(Struct, frozen=True):
    """What one operation gave; `stat` is packed as a client will read it."""

    code: int = 0
    path: str = ""
    stat: bytes = b""


class Applied(Struct):
    """What a transaction did: the answer for whoever asked, and what watches must hear of."""

    code: int
    results: list[OpResult]
    events: list[tuple[int, str]]


class Tree:
    def __init__(self) -> None:
        self.last_zxid = 0
        self.time = 0
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[int, Session] = {}
        self.containers: set[str] = set()
        self.ttls: set[str] = set()
        self.quotas: set[str] = set()
        self.sequences: dict[int, int] = {}
        """The last request of each server that is part of the history: no request enters it twice."""
        self._shared_acls: dict[tuple[Acl, ...], tuple[Acl, ...]] = {}
        for path, acl in (
            (paths.ROOT, OPEN_ACL),
            (paths.RESERVED, OPEN_ACL),
            (paths.QUOTA, OPEN_ACL),
            (paths.CONFIG, READ_ACL),
        ):
            self._insert(path, Node(b"", acl, 0, 0, 0, 0, 0, 0, 0, 0, 0))

    def set_config(self, text: str) -> None:
        """What `/zookeeper/config` reads: fixed by the ensemble's list of servers, so not a transaction."""
        self.nodes[paths.CONFIG].data = text.encode()

    def apply(self, zxid: int, transaction: Transaction, *, details: bool = False) -> Applied:
        """Apply the next transaction. `details` asks for results, which only the asking server needs."""
        assert zxid > self.last_zxid, f"zxid {zxid:#x} after {self.last_zxid:#x}"
        self.last_zxid = zxid
        self.time = time = transaction.time
        if transaction.sequence:
            self.sequences[transaction.origin] = transaction.sequence
        applied = Applied(0, [], [])
        match transaction.operation:
            case MultiDone(ops):
                for op in ops:
                    self._change(zxid, time, op, applied, details)
            case MultiRefused(codes):
                applied.results = [OpResult(code) for code in codes]
            case Refused(code):
                applied.code = code
            case Synced():
                pass
            case SessionOpened(timeout, password, swift):
                self.sessions[transaction.session] = Session(timeout, password, swift)
            case SessionClosed():
                self._close(transaction.session, zxid, time, applied)
            case operation:
                self._change(zxid, time, operation, applied, details)
        return applied

    def children(self, path: str) -> list[str]:
        node = self.nodes[path]
        return list(node.children) if node.children else []

    def descendants(self, path: str) -> Iterator[str]:
        """The path itself and everything below it."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            yield path
            waiting += [paths.child(path, name) for name in self.nodes[path].children or ()]

    def count_descendants(self, path: str) -> int:
        return sum(1 for _ in self.descendants(path)) - 1

    def digest(self) -> str:
        """Equal for equal trees: what agreement between servers is checked by."""
        digest = hashlib.sha256()
        for chunk in self.snapshot():
            digest.update(chunk)
        return digest.hexdigest()

    def snapshot(self) -> Iterator[bytes]:
        """The whole state in chunks of bounded size; `restore` reads them back."""
        encode = msgspec.msgpack.Encoder().encode
        sessions = sorted(
            (i, s.timeout, s.password, s.close_with_connection) for i, s in self.sessions.items()
        )
        yield encode((self.last_zxid, self.time, sorted(self.sequences.items()), sessions))
        chunk: list[tuple[Any, ...]] = []
        for path, n in self.nodes.items():
            chunk.append(
                (path, n.data, n.acl, n.czxid, n.mzxid, n.pzxid, n.ctime, n.mtime)  # noqa: RUF005
                + (n.version, n.cversion, n.aversion, n.owner)
            )
            if len(chunk) == _CHUNK_NODES:
                yield encode(chunk)
                chunk = []
        yield encode(chunk)

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> "Tree":
        """The tree of a snapshot. Damage shows as `msgspec.DecodeError`, `ValueError` or `KeyError`."""
        tree = cls()
        remaining = iter(chunks)
        head = msgspec.msgpack.decode(
            next(remaining), type=tuple[int, int, list[tuple[int, int]], list[tuple[int, int, bytes, bool]]]
        )
        tree.last_zxid, tree.time = head[0], head[1]
        tree.sequences = dict(head[2])
        tree.sessions = {s: Session(timeout, password, swift) for s, timeout, password, swift in head[3]}
        tree.nodes.clear()
        for chunk in remaining:
            for path, data, acl, c, m, p, ctime, mtime, v, cv, av, owner in _chunk_decoder.decode(chunk):
                tree._insert(path, Node(data, tree._share(acl), c, m, p, ctime, mtime, v, cv, av, owner))
        return tree

    def _change(self, zxid: int, time: int, operation: Any, applied: Applied, details: bool) -> None:
        node: Node | None
        match operation:
            case Created(path, data, acl, owner, parent_cversion):
                node = Node(data, self._share(acl), zxid, zxid, zxid, time, time, 0, 0, 0, owner)
                parent_path = paths.parent(path)
                parent = self.nodes[parent_path]
                parent.cversion = max(parent.cversion, parent_cversion)
                parent.pzxid = zxid
                self._insert(path, node)
                if self.quotas or path.startswith(paths.QUOTA):
                    quota.created(self, path, zxid, time)
                applied.events += ((Event.CREATED, path), (Event.CHILDREN_CHANGED, parent_path))
            case DataSet(path, data, version):
                node = self.nodes[path]
                if self.quotas:
                    quota.resized(self, path, len(data or b"") - len(node.data or b""))
                node.data, node.version, node.mzxid, node.mtime = data, version, zxid, time
                applied.events.append((Event.DATA_CHANGED, path))
            case Deleted(path):
                self._remove(path, zxid, applied)
                node = None
            case AclSet(path, acl, version):
                node = self.nodes[path]
                node.acl, node.aversion = self._share(acl), version
            case Checked(path):
                node = None
            case other:
                raise AssertionError(f"{other!r} does not change a node")
        if details:
            applied.results.append(OpResult(Code.OK, path, node.stat() if node else b""))

    def _insert(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        if path != paths.ROOT:
            parent = self.nodes[paths.parent(path)]
            if parent.children is None:
                parent.children = set()
            parent.children.add(paths.name(path))
        if node.owner:
            if node.owner == CONTAINER_OWNER:
                self.containers.add(path)
            elif owner_ttl(node.owner):
                self.ttls.add(path)
            elif node.owner in self.sessions:
                self.sessions[node.owner].ephemerals.add(path)
        if path.endswith(paths.LIMITS_NAME) and path.startswith(paths.QUOTA):
            self.quotas.add(quota.guarded(path))

    def _remove(self, path: str, zxid: int, applied: Applied) -> None:
        node = self.nodes.pop(path)
        parent_path = paths.parent(path)
        parent = self.nodes[parent_path]
        assert parent.children is not None
        parent.children.discard(paths.name(path))
        if not parent.children:
            parent.children = None
        parent.pzxid = max(parent.pzxid, zxid)
        if node.owner:
            self.containers.discard(path)
            self.ttls.discard(path)
            if is_session(node.owner) and node.owner in self.sessions:
                self.sessions[node.owner].ephemerals.discard(path)
        if self.quotas:
            quota.deleted(self, path, node)
        applied.events += ((Event.DELETED, path), (Event.CHILDREN_CHANGED, parent_path))

    def _close(self, session: int, zxid: int, time: int, applied: Applied) -> None:
        closed = self.sessions.get(session)
        if closed is not None:
            for path in sorted(closed.ephemerals):
                self._remove(path, zxid, applied)
            del self.sessions[session]

    def _share(self, acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
        if len(self._shared_acls) > _MAX_SHARED_ACLS:
            self._shared_acls.clear()
        return self._shared_acls.setdefault(acl, acl)


_chunk_decoder = msgspec.msgpack.Decoder(
    list[tuple[str, bytes | None, tuple[Acl, ...], int, int, int, int, int, int, int, int, int]]
)
