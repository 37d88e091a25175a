"""Requests that one server answers alone, from its own tree: everything that changes nothing in it."""

from collections.abc import Hashable, Sequence

from lockstep.coordination import access, paths
from lockstep.coordination.access import Identity
from lockstep.coordination.clients import Client
from lockstep.coordination.tree import Node, Tree
from lockstep.coordination.watches import WatchTable
from lockstep.coordination.wire.codes import Code, Op, Perm
from lockstep.coordination.wire.jute import (
    BadFrame,
    Reader,
    pack_buffer,
    pack_int,
    pack_string,
    pack_strings,
)
from lockstep.coordination.wire.records import (
    MULTI_HEADER,
    Acl,
    Auth,
    MultiRead,
    Path,
    PathAndMode,
    Read,
    Request,
    SetWatches,
    decode_request,
    event_frame,
    pack_acl,
    reply,
)


class ReadRefused(Exception):
    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


def frames(
    client: Client,
    xid: int,
    op: int,
    frame: bytes,
    tree: Tree,
    watches: WatchTable[Hashable],
    super_digest: str | None,
) -> tuple[list[bytes], bool]:
    """What the client gets for its request, and whether it may stay."""
    zxid = tree.last_zxid
    try:
        request = decode_request(op, Reader(frame, 8))
    except BadFrame:
        code = Code.MARSHALLING_ERROR if op in Op._value2member_map_ else Code.UNIMPLEMENTED
        return [reply(xid, zxid, code)], True
    match request:
        case Auth(scheme=scheme, auth=auth):
            identity = access.authenticate(scheme, auth, super_digest)
            if identity is None:
                return [reply(xid, 0, Code.AUTH_FAILED)], False
            if identity not in client.identities:
                client.identities = (*client.identities, identity)
            return [reply(xid, 0, 0)], True
        case SetWatches():
            missed = watches.restore(client, request, tree)
            return [*(event_frame(event, path, zxid) for event, path in missed), reply(xid, zxid, 0)], True
    try:
        body = answer(op, request, tree, watches, client, client.identities, client.session)
    except ReadRefused as refused:
        return [reply(xid, zxid, refused.code)], True
    return [reply(xid, zxid, 0, body)], True


def answer(
    op: int,
    request: Request,
    tree: Tree,
    watches: WatchTable[Hashable],
    watcher: Hashable,
    identities: Sequence[Identity],
    session: int,
) -> bytes:
    """The body of the reply, or `ReadRefused`. Watches that the request asks for are set on the way."""
    match request:
        case Read(path, watch):
            return _read(op, path, watch, tree, watches, watcher, identities)
        case MultiRead(ops):
            parts: list[bytes] = []
            for part, (path, watch) in ((o, (r.path, r.watch)) for o, r in ops):
                try:
                    body = _read(part, path, watch, tree, watches, watcher, identities)
                    parts += (MULTI_HEADER.pack(part, False, 0), body)
                except ReadRefused as refused:
                    parts += (MULTI_HEADER.pack(-1, False, refused.code), pack_int(refused.code))
            return b"".join((*parts, MULTI_HEADER.pack(-1, True, -1)))
        case Path(path):
            return _about(op, path, tree, identities, session)
        case PathAndMode(path, mode):
            return _watch_request(op, path, mode, watches, watcher)
    if op == Op.WHO_AM_I:
        shown = [(s, i.partition(":")[0] if s == "digest" else i) for s, i in identities]
        body = b"".join(pack_string(s) + pack_string(i) for s, i in shown)
        return pack_int(len(shown)) + body
    raise ReadRefused(Code.UNIMPLEMENTED)


def _read(
    op: int,
    path: str,
    watch: bool,
    tree: Tree,
    watches: WatchTable[Hashable],
    watcher: Hashable,
    identities: Sequence[Identity],
) -> bytes:
    node = tree.nodes.get(path)
    if node is None:
        if not path.startswith("/"):
            raise ReadRefused(Code.BAD_ARGUMENTS)
        if watch and op == Op.EXISTS:
            watches.watch_data(path, watcher)
        raise ReadRefused(Code.NO_NODE)
    if op == Op.EXISTS:
        if watch:
            watches.watch_data(path, watcher)
        return node.stat()
    _permit(node, Perm.READ, identities)
    if op == Op.GET_DATA:
        if watch:
            watches.watch_data(path, watcher)
        return pack_buffer(node.data) + node.stat()
    if watch:
        watches.watch_children(path, watcher)
    names = pack_strings(list(node.children) if node.children else [])
    return names + node.stat() if op == Op.GET_CHILDREN2 else names


def _about(op: int, path: str, tree: Tree, identities: Sequence[Identity], session: int) -> bytes:
    if op == Op.GET_EPHEMERALS:
        mine = tree.sessions[session].ephemerals if session in tree.sessions else ()
        return pack_strings(sorted(p for p in mine if p.startswith(path)))
    node = tree.nodes.get(path)
    if node is None:
        raise ReadRefused(Code.NO_NODE if path.startswith("/") else Code.BAD_ARGUMENTS)
    if op == Op.GET_ALL_CHILDREN_NUMBER:
        _permit(node, Perm.READ, identities)
        return pack_int(tree.count_descendants(path))
    if op == Op.GET_ACL:
        _permit(node, Perm.READ | Perm.ADMIN, identities)
        acl: Sequence[Acl] = node.acl
        if not access.allowed(acl, Perm.ADMIN, identities):
            acl = [_masked(entry) for entry in acl]
        return pack_acl(acl) + node.stat()
    raise ReadRefused(Code.UNIMPLEMENTED)


def _watch_request(op: int, path: str, mode: int, watches: WatchTable[Hashable], watcher: Hashable) -> bytes:
    if op == Op.ADD_WATCH:
        if mode not in (0, 1) or not paths.is_valid(path):
            raise ReadRefused(Code.BAD_ARGUMENTS)
        watches.watch_persistent(path, watcher, recursive=mode == 1)
        return pack_int(0)
    if not 1 <= mode <= 5:
        raise ReadRefused(Code.BAD_ARGUMENTS)
    there = watches.has if op == Op.CHECK_WATCHES else watches.remove
    if not there(path, watcher, mode):
        raise ReadRefused(Code.NO_WATCHER)
    return b""


def _permit(node: Node, perm: int, identities: Sequence[Identity]) -> None:
    if not access.allowed(node.acl, perm, identities):
        raise ReadRefused(Code.NO_AUTH)


def _masked(entry: Acl) -> Acl:
    """Who may not administer a node sees whose it is, but not the hash of a password."""
    if entry.scheme != "digest":
        return entry
    return Acl(entry.perms, entry.scheme, entry.id.partition(":")[0] + ":x")
