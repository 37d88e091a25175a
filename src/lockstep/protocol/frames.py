"""Frames: how bytes become messages between two processes.

A frame is a length (4 bytes, little endian) and that many bytes of msgpack. The first frame of each side is a
`Hello`; one that is not welcome is answered by `Refused` and the connection is closed. After that, frames
between nodes are the protocol's own messages; between a client and a node they are `Request` and
`Response`.

Speed comes from doing little per frame and nothing per byte: one read gives many frames, and the frames of
one turn of the event loop leave in one write. Safety comes from bounds: a frame's size, the bytes that may
wait for a slow reader, and the time that a stranger has to say hello.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import msgspec

from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

HELLO_BYTES: Final = 4096
"""A stranger's first frame is no larger than this."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Who speaks, which protocol, and whom it means to reach (a port may have changed hands)."""

    sender: str
    protocol: str
    version: int
    to: str = ""
    client: bool = False


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str


class Request(msgspec.Struct, frozen=True, tag="request"):
    """A client's command; `command` is msgpack that the machine's COMMANDS type decodes."""

    request: int
    command: bytes


class Response(msgspec.Struct, frozen=True, tag="response"):
    request: int
    result: bytes


@dataclass(frozen=True)
class Limits:
    """What a peer or a client may make this node hold."""

    frame: int = 8 * 2**20
    client_frame: int = 2**20
    queue: int = 32 * 2**20
    """Bytes that may wait for a reader that is too slow; beyond it the connection is dropped."""
    clients: int = 1000
    strangers: int = 100
    """Connections that have not said hello yet."""
    hello_seconds: float = 2.0


_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 64 * 2**10
"""Bounds how long one read's frames keep timers waiting: some 3,000 small messages."""
_WRITE_BYTES: Final = 64 * 2**10


class Connection(asyncio.BufferedProtocol):
    """One TCP connection that carries frames both ways.

    `receive` gets each frame; whoever owns the connection sets it. A frame that `receive` cannot decode
    (`msgspec.MsgspecError`) closes the connection. `lost` is called once, when the connection is gone.
    """

    def __init__(
        self,
        receive: "Callable[[Connection, bytes], None]",
        lost: "Callable[[Connection, str], None]",
        *,
        max_frame: int,
        max_queue: int,
        opened: "Callable[[Connection], None] | None" = None,
    ) -> None:
        self.receive = receive
        self.lost = lost
        self.opened = opened
        self.max_frame = max_frame
        self.max_queue = max_queue
        self.other: str = "?"
        """Who is at the other end, for people who read the log."""
        self.closed = False
        self._reason = ""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0

    def send(self, payload: bytes) -> None:
        """Queue a frame; it leaves at the end of this turn of the loop."""
        if self.closed:
            return
        out = self._out
        out.append(_LENGTH.pack(len(payload)))
        out.append(payload)
        self._out_bytes += len(payload) + 4
        if self._out_bytes >= _WRITE_BYTES:
            self._flush_now()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def drop(self, reason: str) -> None:
        """Close at once; what waits to be sent is lost."""
        if not self.closed:
            self.closed = True
            self._reason = reason
            self._out.clear()
            if self._transport is not None:
                self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Tell the other side why, then close."""
        if not self.closed:
            self.send(msgspec.msgpack.encode(Refused(reason)))
            self._flush_now()
            self.closed = True
            self._reason = reason
            if self._transport is not None:
                self._transport.close()

    def pause(self, paused: bool) -> None:
        """Stop or resume reading: the other side then feels TCP's back-pressure."""
        if self._transport is not None and not self.closed:
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        address = transport.get_extra_info("peername")
        if address:
            self.other = f"{address[0]}:{address[1]}"
        _tune(transport)
        if self.opened is not None:
            self.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self.lost(self, self._reason or (f"connection lost: {exc}" if exc else "closed by the other side"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        start, end = 0, self._end + nbytes
        buffer, view, unpack = self._buffer, self._view, _LENGTH.unpack_from
        needed = 0
        while end - start >= 4:
            (length,) = unpack(buffer, start)
            if length > self.max_frame:
                self._malformed(f"a frame of {length} bytes, where {self.max_frame} are allowed")
                return
            stop = start + 4 + length
            if stop > end:
                needed = 4 + length
                break
            try:
                # A copy: a decoded message must not point into a buffer that the next read overwrites.
                self.receive(self, bytes(view[start + 4 : stop]))
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                self._malformed(f"a frame that does not decode: {error}")
                return
            if self.closed:
                return
            start = stop
        self._keep(start, end, needed)

    def eof_received(self) -> bool:
        return False

    def _keep(self, start: int, end: int, needed: int) -> None:
        """Move the incomplete frame to the front; make room for the rest of it as it really arrives."""
        left = end - start
        size = len(self._buffer)
        wanted = min(max(needed, _READ_BYTES), max(2 * left, _READ_BYTES))
        if wanted > size or (size > _READ_BYTES and wanted == _READ_BYTES):
            buffer = bytearray(wanted)
            buffer[:left] = self._view[start:end]
            self._buffer, self._view = buffer, memoryview(buffer)
        elif start and left:
            self._buffer[:left] = self._buffer[start:end]
        self._end = left

    def _malformed(self, what: str) -> None:
        logger.warning("%s sent %s; connection closed", self.other, what)
        self.drop(f"sent {what}")

    def _flush(self) -> None:
        self._flushing = False
        if self._out:
            self._flush_now()

    def _flush_now(self) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        waiting = transport.get_write_buffer_size() + self._out_bytes
        if waiting > self.max_queue:
            logger.warning("%s reads too slowly: %d bytes wait; connection dropped", self.other, waiting)
            self.drop("reads too slowly")
            return
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        transport.write(data)


def _tune(transport: asyncio.BaseTransport) -> None:
    """No delay for small messages; a silent machine is noticed in seconds even while nothing is sent."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
