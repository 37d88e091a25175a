"""The records that clients send and receive, both ways: a server decodes requests, our client encodes them.

Requests are small frozen structs without behaviour. `decode_request` is total: for every operation and every
byte string it returns a request or raises `BadFrame`.
"""

from collections.abc import Callable, Iterable
from struct import Struct as Packer
from typing import TypeAlias

from msgspec import Struct

from lockstep.coordination.wire.codes import Op
from lockstep.coordination.wire.jute import (
    BadFrame,
    Reader,
    framed,
    pack_buffer,
    pack_int,
    pack_long,
    pack_string,
    pack_strings,
)

MAX_MULTI: int = 10_000
"""Operations in one multi. ZooKeeper has no such bound besides the frame; a peer must not choose ours."""

REQUEST_HEADER = Packer("!ii")
REPLY_HEADER = Packer("!iqi")
STAT = Packer("!qqqqiiiqiiq")
MULTI_HEADER = Packer("!i?i")
_CONNECT = Packer("!iqiq")
_CONNECTED = Packer("!iiq")
_EVENT = Packer("!ii")


class Acl(Struct, frozen=True, array_like=True, gc=False):
    """Who (`scheme`, `id`) may do what (`perms`)."""

    perms: int
    scheme: str
    id: str


class Stat(Struct, frozen=True, array_like=True, gc=False):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Connect(Struct, frozen=True):
    """The first frame of a connection. `close_with_connection` is ours: see docs/coordination-service.md."""

    protocol_version: int
    last_zxid_seen: int
    timeout: int
    session: int
    password: bytes
    read_only: bool | None = None
    close_with_connection: bool = False


class Create(Struct, frozen=True):
    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    flags: int
    ttl: int = 0


class Delete(Struct, frozen=True):
    path: str
    version: int


class SetData(Struct, frozen=True):
    path: str
    data: bytes | None
    version: int


class SetAcl(Struct, frozen=True):
    path: str
    acl: tuple[Acl, ...]
    version: int


class Check(Struct, frozen=True):
    path: str
    version: int


class Multi(Struct, frozen=True):
    """Operations that happen all or not at all."""

    ops: tuple[tuple[int, "Create | Delete | SetData | Check"], ...]


class MultiRead(Struct, frozen=True):
    ops: tuple[tuple[int, "Read"], ...]


class Read(Struct, frozen=True, gc=False):
    """exists, getData, getChildren, getChildren2: a path, and whether to watch it."""

    path: str
    watch: bool


class Path(Struct, frozen=True, gc=False):
    """getACL, sync, getEphemerals, getAllChildrenNumber, deleteContainer: only a path."""

    path: str


class SetWatches(Struct, frozen=True):
    relative_zxid: int
    data: list[str]
    exist: list[str]
    child: list[str]
    persistent: list[str]
    recursive: list[str]


class PathAndMode(Struct, frozen=True):
    """addWatch (`mode`), removeWatches and checkWatches (`type`)."""

    path: str
    mode: int


class Auth(Struct, frozen=True):
    type: int
    scheme: str
    auth: bytes


class Empty(Struct, frozen=True):
    """A request without a body: ping, closeSession, whoAmI."""


class Opaque(Struct, frozen=True):
    """sasl and reconfig, which we refuse by code: the body does not matter."""


Request: TypeAlias = (
    Create
    | Delete
    | SetData
    | SetAcl
    | Check
    | Multi
    | MultiRead
    | Read
    | Path
    | SetWatches
    | PathAndMode
    | Auth
    | Empty
    | Opaque
)


def decode_connect(frame: bytes) -> Connect:
    reader = Reader(frame)
    version, zxid, timeout, session = reader.int32(), reader.int64(), reader.int32(), reader.int64()
    password = reader.buffer() or b""
    read_only = reader.flag() if reader.remaining else None
    swift = reader.flag() if reader.remaining else False
    return Connect(version, zxid, timeout, session, password, read_only, swift)


def encode_connect(connect: Connect) -> bytes:
    parts = [
        _CONNECT.pack(connect.protocol_version, connect.last_zxid_seen, connect.timeout, connect.session),
        pack_buffer(connect.password),
        b"\1" if connect.read_only else b"\0",
    ]
    if connect.close_with_connection:
        parts.append(b"\1")
    return framed(*parts)


def connect_reply(timeout: int, session: int, password: bytes, *, with_read_only: bool) -> bytes:
    tail = (b"\0",) if with_read_only else ()
    return framed(_CONNECTED.pack(0, timeout, session), pack_buffer(password), *tail)


def decode_connect_reply(frame: bytes) -> tuple[int, int, bytes]:
    """(timeout, session, password); a timeout of 0 says that the session has expired."""
    reader = Reader(frame)
    reader.int32()
    return reader.int32(), reader.int64(), reader.buffer() or b""


def decode_request(op: int, body: Reader) -> Request:
    decoder = _DECODERS.get(op)
    if decoder is None:
        raise BadFrame(f"unknown operation {op}")
    return decoder(body)


def encode_request(xid: int, op: int, *parts: bytes) -> bytes:
    return framed(REQUEST_HEADER.pack(xid, op), *parts)


def reply(xid: int, zxid: int, code: int, *parts: bytes) -> bytes:
    return framed(REPLY_HEADER.pack(xid, zxid, code), *parts)


def event_frame(event: int, path: str, zxid: int) -> bytes:
    return framed(REPLY_HEADER.pack(-1, zxid, 0), _EVENT.pack(event, 3), pack_string(path))


def pack_acl(acl: Iterable[Acl]) -> bytes:
    entries = tuple(acl)
    parts = [pack_int(len(entries))]
    for entry in entries:
        parts += (pack_int(entry.perms), pack_string(entry.scheme), pack_string(entry.id))
    return b"".join(parts)


def pack_stat(stat: Stat) -> bytes:
    return STAT.pack(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.aversion,
        stat.ephemeral_owner,
        stat.data_length,
        stat.num_children,
        stat.pzxid,
    )


def read_stat(reader: Reader) -> Stat:
    long, integer = reader.int64, reader.int32
    return Stat(
        long(), long(), long(), long(), integer(), integer(), integer(), long(), integer(), integer(), long()
    )


def read_acl(reader: Reader) -> Acl:
    return Acl(reader.int32(), reader.string(), reader.string())


def pack_create(request: Create, *, with_ttl: bool = False) -> bytes:
    parts = [pack_string(request.path), pack_buffer(request.data), pack_acl(request.acl)]
    parts.append(pack_int(request.flags))
    if with_ttl:
        parts.append(pack_long(request.ttl))
    return b"".join(parts)


def pack_multi(ops: Iterable[tuple[int, bytes]]) -> bytes:
    """The operations, each behind its header, and the header that ends them."""
    parts: list[bytes] = []
    for op, body in ops:
        parts += (MULTI_HEADER.pack(op, False, -1), body)
    parts.append(MULTI_HEADER.pack(-1, True, -1))
    return b"".join(parts)


def pack_set_watches(watches: SetWatches) -> bytes:
    lists = (watches.data, watches.exist, watches.child, watches.persistent, watches.recursive)
    return b"".join((pack_long(watches.relative_zxid), *map(pack_strings, lists)))


def _acls(reader: Reader) -> tuple[Acl, ...]:
    return tuple(reader.vector(read_acl, 12))


def _create(reader: Reader) -> Create:
    return Create(reader.string(), reader.buffer(), _acls(reader), reader.int32())


def _create_ttl(reader: Reader) -> Create:
    return Create(reader.string(), reader.buffer(), _acls(reader), reader.int32(), reader.int64())


def _delete(reader: Reader) -> Delete:
    return Delete(reader.string(), reader.int32())


def _set_data(reader: Reader) -> SetData:
    return SetData(reader.string(), reader.buffer(), reader.int32())


def _set_acl(reader: Reader) -> SetAcl:
    return SetAcl(reader.string(), _acls(reader), reader.int32())


def _check(reader: Reader) -> Check:
    return Check(reader.string(), reader.int32())


def _read(reader: Reader) -> Read:
    return Read(reader.string(), reader.flag())


def _path(reader: Reader) -> Path:
    return Path(reader.string())


def _set_watches(reader: Reader) -> SetWatches:
    return SetWatches(reader.int64(), reader.strings(), reader.strings(), reader.strings(), [], [])


def _set_watches2(reader: Reader) -> SetWatches:
    strings = reader.strings
    return SetWatches(reader.int64(), strings(), strings(), strings(), strings(), strings())


def _path_and_mode(reader: Reader) -> PathAndMode:
    return PathAndMode(reader.string(), reader.int32())


def _auth(reader: Reader) -> Auth:
    return Auth(reader.int32(), reader.string(), reader.buffer() or b"")


def _multi(reader: Reader) -> Multi:
    ops: list[tuple[int, Create | Delete | SetData | Check]] = []
    for op in _multi_headers(reader):
        match op:
            case Op.CREATE | Op.CREATE2 | Op.CREATE_CONTAINER:
                ops.append((op, _create(reader)))
            case Op.CREATE_TTL:
                ops.append((op, _create_ttl(reader)))
            case Op.DELETE:
                ops.append((op, _delete(reader)))
            case Op.SET_DATA:
                ops.append((op, _set_data(reader)))
            case Op.CHECK:
                ops.append((op, _check(reader)))
            case _:
                raise BadFrame(f"operation {op} cannot be part of a multi")
    return Multi(tuple(ops))


def _multi_read(reader: Reader) -> MultiRead:
    ops: list[tuple[int, Read]] = []
    for op in _multi_headers(reader):
        if op not in (Op.GET_DATA, Op.GET_CHILDREN):
            raise BadFrame(f"operation {op} cannot be part of a multiRead")
        ops.append((op, _read(reader)))
    return MultiRead(tuple(ops))


def _multi_headers(reader: Reader) -> Iterable[int]:
    for _ in range(MAX_MULTI + 1):
        op, done = reader.int32(), reader.flag()
        reader.int32()
        if done:
            return
        yield op
    raise BadFrame(f"more than {MAX_MULTI} operations in one multi")


def _empty(_: Reader) -> Empty:
    return Empty()


def _opaque(_: Reader) -> Opaque:
    return Opaque()


_DECODERS: dict[int, Callable[[Reader], Request]] = {
    Op.CREATE: _create,
    Op.CREATE2: _create,
    Op.CREATE_CONTAINER: _create,
    Op.CREATE_TTL: _create_ttl,
    Op.DELETE: _delete,
    Op.SET_DATA: _set_data,
    Op.SET_ACL: _set_acl,
    Op.CHECK: _check,
    Op.MULTI: _multi,
    Op.MULTI_READ: _multi_read,
    Op.EXISTS: _read,
    Op.GET_DATA: _read,
    Op.GET_CHILDREN: _read,
    Op.GET_CHILDREN2: _read,
    Op.GET_ACL: _path,
    Op.SYNC: _path,
    Op.GET_EPHEMERALS: _path,
    Op.GET_ALL_CHILDREN_NUMBER: _path,
    Op.SET_WATCHES: _set_watches,
    Op.SET_WATCHES2: _set_watches2,
    Op.ADD_WATCH: _path_and_mode,
    Op.REMOVE_WATCHES: _path_and_mode,
    Op.CHECK_WATCHES: _path_and_mode,
    Op.AUTH: _auth,
    Op.PING: _empty,
    Op.CLOSE_SESSION: _empty,
    Op.WHO_AM_I: _empty,
    Op.SASL: _opaque,
    Op.RECONFIG: _opaque,
}
