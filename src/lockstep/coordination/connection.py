"""One connection of our client to one server: frames out, replies in, in order."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, cast

from lockstep.coordination.errors import ConnectionLoss, error_for
from lockstep.coordination.wire.codes import AUTH_XID, NOTIFICATION_XID, PING_XID, SET_WATCHES_XID, Op
from lockstep.coordination.wire.jute import BadFrame, Reader
from lockstep.coordination.wire.records import REPLY_HEADER, decode_connect_reply, encode_request
from lockstep.errors import UsageError

MAX_REPLY: Final = 1 << 30
_LENGTH = Struct("!i")
Answered = Callable[[int], None]


def parse_servers(servers: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port,host:port`; a port that is left out is 2181."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    found: list[tuple[str, int]] = []
    for part in filter(None, (p.strip() for p in parts)):
        host, _, port = part.rpartition(":") if ":" in part else (part, "", "2181")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"{part!r} is not an address", hint="write host:port,host:port,...")
        found.append((host, int(port)))
    if not found:
        raise UsageError("no server is named", hint="write host:port,host:port,...")
    return found


class Connection(asyncio.Protocol):
    """`lost` is done once the connection is gone; all that was under way then fails."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[int, str], None],
        on_zxid: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self._on_zxid = on_zxid
        self.lost: asyncio.Future[None] = loop.create_future()
        self.is_ready = False
        self._transport: asyncio.Transport | None = None
        self._greeted: asyncio.Future[tuple[int, int, bytes]] = loop.create_future()
        self._waiting: deque[tuple[int, int, asyncio.Future[Reader], Answered | None]] = deque()
        self._in = b""
        self._out: list[bytes] = []
        self._is_flushing = False
        self._xid = 0
        self._heard = loop.time()
        self._said = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        await self._loop.create_connection(lambda: self, host, port, ssl=tls)

    async def handshake(self, frame: bytes) -> tuple[int, int, bytes]:
        """(timeout in ms, session, password)"""
        assert self._transport is not None
        self._transport.write(frame)
        return await self._greeted

    def request(
        self, op: int, body: bytes = b"", answered: "Answered | None" = None
    ) -> "asyncio.Future[Reader]":
        """`answered` gets the reply's code at once: before any later frame, say an event, is looked at."""
        future: asyncio.Future[Reader] = self._loop.create_future()
        if self._transport is None or self.lost.done():
            future.set_exception(_lost(op))
            return future
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._waiting.append((self._xid, op, future, answered))
        self._send(encode_request(self._xid, op, body))
        return future

    def send_auth(self, body: bytes) -> None:
        self._send(encode_request(AUTH_XID, Op.AUTH, body))

    def send_watches(self, body: bytes) -> None:
        self._send(encode_request(SET_WATCHES_XID, Op.SET_WATCHES2, body))

    def keep_alive(self, timeout: float) -> None:
        """Ping when idle; a server that is silent for two thirds of the timeout is given up."""
        now = self._loop.time()
        if now - self._heard > timeout * 2 / 3:
            self.drop()
            return
        if now - self._said > timeout / 4:
            self._send(encode_request(PING_XID, Op.PING))
        self._timer = self._loop.call_later(timeout / 8, self.keep_alive, timeout)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._gone()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def data_received(self, data: bytes) -> None:
        data = self._in + data if self._in else data
        at, end = 0, len(data)
        try:
            while end - at >= 4:
                (length,) = _LENGTH.unpack_from(data, at)
                if not 0 <= length <= MAX_REPLY:
                    raise BadFrame(f"a reply of {length} bytes")
                stop = at + 4 + length
                if stop > end:
                    break
                self._on_frame(data[at + 4 : stop])
                at = stop
        except BadFrame:
            self.drop()
            return
        self._in = data[at:] if at else data

    def _on_frame(self, frame: bytes) -> None:
        self._heard = self._loop.time()
        if not self._greeted.done():
            self._greeted.set_result(decode_connect_reply(frame))
            return
        if len(frame) < REPLY_HEADER.size:
            raise BadFrame("a reply without a header")
        xid, zxid, code = REPLY_HEADER.unpack_from(frame)
        if zxid > 0:
            self._on_zxid(zxid)
        body = Reader(frame, REPLY_HEADER.size)
        if xid == NOTIFICATION_XID:
            kind, _ = body.int32(), body.int32()
            if 1 <= kind <= 4:
                self._on_event(kind, body.string())
            return
        if xid in (PING_XID, AUTH_XID, SET_WATCHES_XID):
            return
        if not self._waiting:
            raise BadFrame("a reply that nobody asked for")
        expected, op, future, answered = self._waiting.popleft()
        if xid != expected:
            raise BadFrame("a reply out of order")
        if answered is not None:
            answered(code)
        if future.done():
            return
        if code:
            future.set_exception(error_for(code, Op(op).name.lower().replace("_", " ")))
        else:
            future.set_result(body)

    def _send(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is not None and self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
            self._said = self._loop.time()
        self._out.clear()

    def _gone(self) -> None:
        self.is_ready = False
        if self._timer is not None:
            self._timer.cancel()
        if self.lost.done():
            return
        self.lost.set_result(None)
        if not self._greeted.done():
            self._greeted.set_exception(_lost(Op.CREATE_SESSION))
            self._greeted.exception()
        waiting, self._waiting = self._waiting, deque()
        for _, op, future, _ in waiting:
            if not future.done():
                future.set_exception(_lost(op))
                future.exception()


def _lost(op: int) -> ConnectionLoss:
    name = Op(op).name.lower().replace("_", " ")
    return ConnectionLoss(
        f"{name}: the connection was lost before the answer", hint="it may have happened: look, then retry"
    )
