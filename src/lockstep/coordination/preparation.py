"""The leader's preparation: a request becomes a transaction, or a refusal, before it is agreed on.

The leader answers requests in the order in which they reach it, against its tree *and* what it has proposed
but not yet seen committed (ZooKeeper's outstanding changes). So many requests can be under way at once, and
each sees all that were prepared before it. If leadership ends, the whole object is thrown away.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from lockstep.coordination import access, paths, quota
from lockstep.coordination.access import Identity
from lockstep.coordination.transactions import (
    AclSet,
    Checked,
    Created,
    DataSet,
    Deleted,
    MultiDone,
    MultiRefused,
    Operation,
    Refused,
    SessionClosed,
    SessionOpened,
    Submission,
    Synced,
    Transaction,
    is_repeat,
)
from lockstep.coordination.tree import Tree
from lockstep.coordination.wire.codes import (
    CONTAINER_OWNER,
    MAX_TTL,
    TTL_OWNER_BASE,
    Code,
    Mode,
    Op,
    Perm,
    is_session,
    owner_ttl,
)
from lockstep.coordination.wire.jute import BadFrame, Reader
from lockstep.coordination.wire.records import (
    Acl,
    Check,
    Create,
    Delete,
    Multi,
    Path,
    SetAcl,
    SetData,
    decode_request,
)

CONNECTION_LOST: Final = b"lost"
"""Body of a closeSession that a server asks for because its client's connection ended."""
EXPIRED: Final = b"expired"
"""Body of a closeSession that the leader asks for because nothing was heard from the client."""

_SPECIAL = frozenset((paths.ROOT, paths.RESERVED, paths.QUOTA, paths.CONFIG))
_SEQUENTIAL = (Mode.PERSISTENT_SEQUENTIAL, Mode.EPHEMERAL_SEQUENTIAL, Mode.TTL_SEQUENTIAL)
_open_session = msgspec.msgpack.Decoder(SessionOpened)


class _Refusal(Exception):
    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class _Change(Struct, frozen=True):
    """How a node will be once everything that is proposed is applied; `exists` is false if it is gone."""

    exists: bool
    version: int
    cversion: int
    aversion: int
    acl: tuple[Acl, ...]
    owner: int
    children: int


_Undo: TypeAlias = list[tuple[str, tuple[int, _Change] | None]]
"""The paths that a request changed, each with what was outstanding for it before."""

_ABSENT: Final = _Change(False, 0, 0, 0, (), 0, 0)


class Preparation:
    """`tree` is only read. Call `applied` once for each prepared transaction, when it was applied."""

    def __init__(self, tree: Tree, *, enforce_quota: bool = False) -> None:
        self._tree = tree
        self._enforce_quota = enforce_quota
        self._outstanding: dict[str, tuple[int, _Change]] = {}
        self._touched: deque[tuple[str, ...]] = deque()
        self._first = 0
        self._next = 0
        self._proposed: dict[int, int] = dict(tree.sequences)
        self._opened: set[int] = set()
        self._closing: set[int] = set()
        self._owners: dict[int, int] = {}

    def attach(self, session: int, server: int) -> None:
        """The session's client is now connected to that server: no other may speak for it."""
        self._owners[session] = server

    def prepare(self, origin: int, submission: Submission, now_ms: int) -> Transaction | None:
        """The transaction to propose, or None if this very request was proposed before."""
        if submission.sequence:
            if is_repeat(submission.sequence, self._proposed.get(origin, 0)):
                return None
            self._proposed[origin] = submission.sequence
        undo: _Undo = []
        try:
            operation = self._operation(origin, submission, now_ms, undo)
        except _Refusal as refusal:
            self._take_back(undo)
            operation = Refused(refusal.code)
            undo = []
        except (BadFrame, msgspec.DecodeError):
            self._take_back(undo)
            operation = Refused(Code.MARSHALLING_ERROR)
            undo = []
        self._touched.append(tuple({path for path, _ in undo}))
        self._next += 1
        time = max(now_ms, self._tree.time)
        return Transaction(origin, submission.sequence, submission.session, time, operation)

    def applied(self, transaction: Transaction) -> None:
        """The oldest prepared transaction is now part of the tree."""
        ticket = self._first
        self._first += 1
        for path in self._touched.popleft():
            entry = self._outstanding.get(path)
            if entry is not None and entry[0] == ticket:
                del self._outstanding[path]
        if isinstance(transaction.operation, SessionClosed):
            self._closing.discard(transaction.session)
            self._owners.pop(transaction.session, None)
        elif isinstance(transaction.operation, SessionOpened):
            self._opened.discard(transaction.session)

    @property
    def under_way(self) -> int:
        return self._next - self._first

    def _operation(
        self,
        origin: int,
        submission: Submission,
        now_ms: int,
        undo: _Undo,
    ) -> Operation:
        session, op = submission.session, submission.op
        if op == Op.CREATE_SESSION:
            self._opened.add(session)
            self._owners[session] = origin
            return _open_session.decode(submission.body)
        if op == Op.DELETE_CONTAINER:
            request = decode_request(Op.SYNC, Reader(submission.body))
            assert isinstance(request, Path)
            return self._delete_unused(request.path, now_ms, undo)
        if session:
            self._check_session(origin, submission)
        if op == Op.CLOSE_SESSION:
            self._close(session, undo)
            return SessionClosed()
        request = decode_request(op, Reader(submission.body))
        match request:
            case Multi(ops):
                return self._multi(ops, submission, undo)
            case SetAcl():
                return self._set_acl(request, submission.identities, undo)
            case Path() if op == Op.SYNC:
                return Synced()
            case Create() | Delete() | SetData() | Check():
                return self._single(op, request, submission, undo)
        raise _Refusal(Code.UNIMPLEMENTED)

    def _check_session(self, origin: int, submission: Submission) -> None:
        session = submission.session
        known = session in self._tree.sessions or session in self._opened
        if not known or session in self._closing:
            raise _Refusal(Code.SESSION_EXPIRED)
        if submission.body == EXPIRED and submission.op == Op.CLOSE_SESSION:
            return
        if self._owners.setdefault(session, origin) != origin:
            raise _Refusal(Code.SESSION_MOVED)

    def _single(
        self,
        op: int,
        request: Create | Delete | SetData | Check,
        submission: Submission,
        undo: _Undo,
    ) -> Created | Deleted | DataSet | Checked:
        identities = submission.identities
        match request:
            case Create():
                return self._create(op, request, submission.session, identities, undo)
            case Delete(path, version):
                return self._delete(path, version, identities, undo)
            case SetData(path, data, version):
                node = self._existing(path)
                self._permit(node, Perm.WRITE, identities)
                _compare(version, node.version)
                self._limit(path, 0, len(data or b"") - self._size(path))
                changed = msgspec.structs.replace(node, version=_wrapped(node.version + 1))
                self._note(path, changed, undo)
                return DataSet(path, data, changed.version)
            case Check(path, version):
                node = self._existing(path)
                self._permit(node, Perm.READ, identities)
                _compare(version, node.version)
                return Checked(path)

    def _create(
        self,
        op: int,
        request: Create,
        session: int,
        identities: Sequence[Identity],
        undo: _Undo,
    ) -> Created:
        path, mode = request.path, request.flags
        if not path.startswith("/") or path == paths.ROOT or mode not in Mode.__members__.values():
            raise _Refusal(Code.BAD_ARGUMENTS)
        has_ttl = mode in (Mode.TTL, Mode.TTL_SEQUENTIAL)
        if has_ttl != (op == Op.CREATE_TTL) or (mode == Mode.CONTAINER) != (op == Op.CREATE_CONTAINER):
            raise _Refusal(Code.BAD_ARGUMENTS)
        if has_ttl and not 0 < request.ttl <= MAX_TTL:
            raise _Refusal(Code.BAD_ARGUMENTS)
        acl = access.resolve(request.acl, identities)
        if acl is None:
            raise _Refusal(Code.INVALID_ACL)
        parent_path = paths.parent(path)
        parent = self._existing(parent_path)
        self._permit(parent, Perm.CREATE, identities)
        if mode in _SEQUENTIAL:
            path = f"{path}{parent.cversion:010d}"
        if not paths.is_valid(path):
            raise _Refusal(Code.BAD_ARGUMENTS)
        if self._look(path).exists:
            raise _Refusal(Code.NODE_EXISTS)
        if is_session(parent.owner):
            raise _Refusal(Code.NO_CHILDREN_FOR_EPHEMERALS)
        self._limit(path, 1, len(request.data or b""))
        owner = 0
        if mode in (Mode.EPHEMERAL, Mode.EPHEMERAL_SEQUENTIAL):
            owner = session
        elif mode == Mode.CONTAINER:
            owner = CONTAINER_OWNER
        elif has_ttl:
            owner = TTL_OWNER_BASE + request.ttl
        cversion = _wrapped(parent.cversion + 1)
        grown = msgspec.structs.replace(parent, cversion=cversion, children=parent.children + 1)
        self._note(parent_path, grown, undo)
        self._note(path, _Change(True, 0, 0, 0, acl, owner, 0), undo)
        return Created(path, request.data, acl, owner, cversion)

    def _delete(
        self,
        path: str,
        version: int,
        identities: Sequence[Identity],
        undo: _Undo,
    ) -> Deleted:
        if not path.startswith("/") or path in _SPECIAL:
            raise _Refusal(Code.BAD_ARGUMENTS)
        parent_path = paths.parent(path)
        parent = self._existing(parent_path)
        self._permit(parent, Perm.DELETE, identities)
        node = self._existing(path)
        _compare(version, node.version)
        if node.children:
            raise _Refusal(Code.NOT_EMPTY)
        self._note_removal(path, undo)
        return Deleted(path)

    def _set_acl(
        self,
        request: SetAcl,
        identities: Sequence[Identity],
        undo: _Undo,
    ) -> AclSet:
        acl = access.resolve(request.acl, identities)
        if acl is None:
            raise _Refusal(Code.INVALID_ACL)
        node = self._existing(request.path)
        self._permit(node, Perm.ADMIN, identities)
        _compare(request.version, node.aversion)
        changed = msgspec.structs.replace(node, acl=acl, aversion=_wrapped(node.aversion + 1))
        self._note(request.path, changed, undo)
        return AclSet(request.path, acl, changed.aversion)

    def _multi(
        self,
        ops: Sequence[tuple[int, Create | Delete | SetData | Check]],
        submission: Submission,
        undo: _Undo,
    ) -> MultiDone | MultiRefused:
        done: list[Created | Deleted | DataSet | Checked] = []
        for index, (op, request) in enumerate(ops):
            try:
                done.append(self._single(op, request, submission, undo))
            except _Refusal as refusal:
                self._take_back(undo)
                undo.clear()
                after = len(ops) - index - 1
                codes = [Code.OK] * index + [refusal.code] + [Code.RUNTIME_INCONSISTENCY] * after
                return MultiRefused(tuple(int(code) for code in codes))
        return MultiDone(tuple(done))

    def _delete_unused(self, path: str, now_ms: int, undo: _Undo) -> Deleted:
        """A container without children, or a node whose time to live has passed: only the leader asks."""
        node = self._existing(path)
        stored = self._tree.nodes.get(path)
        if node.children or stored is None:
            raise _Refusal(Code.NOT_EMPTY)
        ttl = owner_ttl(node.owner)
        is_due = node.owner == CONTAINER_OWNER or (ttl > 0 and now_ms - stored.mtime > ttl)
        if not is_due or node.version != stored.version:
            raise _Refusal(Code.BAD_ARGUMENTS)
        self._note_removal(path, undo)
        return Deleted(path)

    def _close(self, session: int, undo: _Undo) -> None:
        self._closing.add(session)
        known = self._tree.sessions.get(session)
        ephemerals = set(known.ephemerals) if known else set()
        ephemerals |= {path for path, (_, c) in self._outstanding.items() if c.exists and c.owner == session}
        for path in sorted(ephemerals):
            if self._look(path).exists:
                self._note_removal(path, undo)

    def _look(self, path: str) -> _Change:
        entry = self._outstanding.get(path)
        if entry is not None:
            return entry[1]
        node = self._tree.nodes.get(path)
        if node is None:
            return _ABSENT
        children = len(node.children) if node.children else 0
        return _Change(True, node.version, node.cversion, node.aversion, node.acl, node.owner, children)

    def _existing(self, path: str) -> _Change:
        change = self._look(path)
        if not change.exists:
            raise _Refusal(Code.NO_NODE if path.startswith("/") else Code.BAD_ARGUMENTS)
        return change

    def _permit(self, node: _Change, perm: Perm, identities: Sequence[Identity]) -> None:
        if not access.allowed(node.acl, perm, identities):
            raise _Refusal(Code.NO_AUTH)

    def _limit(self, path: str, nodes: int, size: int) -> None:
        if self._enforce_quota and quota.exceeded(self._tree, path, nodes, size):
            raise _Refusal(Code.QUOTA_EXCEEDED)

    def _size(self, path: str) -> int:
        node = self._tree.nodes.get(path)
        return len(node.data or b"") if node else 0

    def _note(self, path: str, change: _Change, undo: _Undo) -> None:
        undo.append((path, self._outstanding.get(path)))
        self._outstanding[path] = (self._next, change)

    def _note_removal(self, path: str, undo: _Undo) -> None:
        parent_path = paths.parent(path)
        parent = self._look(parent_path)
        shrunk = msgspec.structs.replace(parent, children=parent.children - 1)
        self._note(parent_path, shrunk, undo)
        self._note(path, _ABSENT, undo)

    def _take_back(self, undo: _Undo) -> None:
        for path, before in reversed(undo):
            if before is None:
                del self._outstanding[path]
            else:
                self._outstanding[path] = before


def _compare(expected: int, actual: int) -> None:
    if expected not in (-1, actual):
        raise _Refusal(Code.BAD_VERSION)


def _wrapped(number: int) -> int:
    """32-bit counters overflow as ZooKeeper's do."""
    return (number + 0x80000000) % 0x100000000 - 0x80000000
