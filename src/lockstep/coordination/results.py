"""What a client reads when its write is done: the reply's body, made from what the transaction did."""

from collections.abc import Iterable

from lockstep.coordination.tree import Applied
from lockstep.coordination.wire.codes import Op
from lockstep.coordination.wire.jute import Reader, pack_int, pack_string
from lockstep.coordination.wire.records import MULTI_HEADER, Multi, decode_request

_WITH_STAT = frozenset((Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL))


def body(op: int, request: bytes, applied: Applied) -> bytes:
    results = applied.results
    match op:
        case Op.CREATE:
            return pack_string(results[0].path)
        case Op.CREATE2 | Op.CREATE_CONTAINER | Op.CREATE_TTL:
            return pack_string(results[0].path) + results[0].stat
        case Op.SET_DATA | Op.SET_ACL:
            return results[0].stat
        case Op.SYNC:
            return pack_string(Reader(request).string())
        case Op.MULTI:
            return b"".join(_multi(request, applied))
    return b""


def _multi(request: bytes, applied: Applied) -> Iterable[bytes]:
    multi = decode_request(Op.MULTI, Reader(request))
    assert isinstance(multi, Multi)
    refused = any(result.code for result in applied.results)
    for (op, _), result in zip(multi.ops, applied.results, strict=True):
        if refused:
            yield MULTI_HEADER.pack(-1, False, result.code)
            yield pack_int(result.code)
            continue
        kind = Op.CREATE2 if op in _WITH_STAT else op
        yield MULTI_HEADER.pack(kind, False, 0)
        if kind == Op.CREATE2:
            yield pack_string(result.path) + result.stat
        elif kind == Op.CREATE:
            yield pack_string(result.path)
        elif kind == Op.SET_DATA:
            yield result.stat
    yield MULTI_HEADER.pack(-1, True, -1)
