"""Our client's multi: operations that happen all or not at all."""

from collections.abc import Awaitable, Callable
from typing import Any

from lockstep.coordination.errors import error_for
from lockstep.coordination.tree import OPEN_ACL
from lockstep.coordination.wire.codes import Code, Mode, Op
from lockstep.coordination.wire.jute import Reader, pack_buffer, pack_int, pack_string
from lockstep.coordination.wire.records import Create, pack_create, pack_multi, read_stat


class Transaction:
    """Collects operations; `commit` sends them as one. Either all happen or none does."""

    def __init__(self, request: Callable[[int, bytes], Awaitable[Reader]]) -> None:
        self._request = request
        self._ops: list[tuple[int, bytes]] = []

    def create(self, path: str, data: bytes = b"", *, flags: Mode = Mode.PERSISTENT) -> "Transaction":
        self._ops.append((Op.CREATE, pack_create(Create(path, data, OPEN_ACL, flags))))
        return self

    def delete(self, path: str, *, version: int = -1) -> "Transaction":
        self._ops.append((Op.DELETE, pack_string(path) + pack_int(version)))
        return self

    def set(self, path: str, data: bytes, *, version: int = -1) -> "Transaction":
        self._ops.append((Op.SET_DATA, pack_string(path) + pack_buffer(data) + pack_int(version)))
        return self

    def check(self, path: str, version: int) -> "Transaction":
        self._ops.append((Op.CHECK, pack_string(path) + pack_int(version)))
        return self

    async def commit(self) -> list[Any]:
        """Each operation's result (a path, a `Stat` or None), or the error of the one that failed."""
        body = await self._request(Op.MULTI, pack_multi(self._ops))
        results: list[Any] = []
        failure = 0
        while True:
            op, done, _ = body.int32(), body.flag(), body.int32()
            if done:
                break
            match op:
                case Op.CREATE:
                    results.append(body.string())
                case Op.SET_DATA:
                    results.append(read_stat(body))
                case Op.ERROR:
                    code = body.int32()
                    if code not in (Code.OK, Code.RUNTIME_INCONSISTENCY):
                        failure = code
                case _:
                    results.append(None)
        if failure:
            raise error_for(failure, "the transaction")
        return results
