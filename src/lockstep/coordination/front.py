"""The clients' door of one server: TCP (or TLS) connections that carry ZooKeeper frames or four-letter words.

Speed: one read gives many frames, and all frames for one client that arise in one turn of the event loop
leave in one write. Bounds: a frame's size is checked before it is buffered, a client that reads too slowly
is dropped, and so is a connection that does not begin a session in time.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from struct import Struct
from typing import Final, cast

from lockstep.coordination.clients import Client
from lockstep.coordination.service import Service
from lockstep.coordination.wire.jute import BadFrame
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

HELLO_SECONDS: Final = 10.0
UNREAD_BYTES: Final = 64 * 2**20
"""What may wait for a slow reader."""
_LENGTH = Struct("!i")
_WORD_BYTES = 4


class Front:
    """Accepts clients for a `Service`. `words` answers four-letter words."""

    def __init__(
        self, service: Service, words: Callable[[str], str | None], now_ms: Callable[[], int]
    ) -> None:
        self.service = service
        self.words = words
        self.now_ms = now_ms
        self.addresses: dict[str, int] = {}
        self.refused = 0
        self._servers: list[asyncio.Server] = []
        self._ports: set[_ClientPort] = set()

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: _ClientPort(self), host, port, backlog=1024, ssl=tls)
        except OSError as error:
            raise LockstepError(
                f"cannot listen for clients on {host}:{port}: {error.strerror or error}",
                hint="free that port or name another one (port 0 takes any free one)",
            ) from error
        self._servers.append(server)
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for port in list(self._ports):
            port.close()

    def admit(self, port: "_ClientPort", address: str) -> bool:
        limits = self.service.settings.limits
        count = self.addresses.get(address, 0)
        if count >= limits.connections_per_address or len(self._ports) >= limits.connections:
            self.refused += 1
            return False
        self.addresses[address] = count + 1
        self._ports.add(port)
        return True

    def leave(self, port: "_ClientPort", address: str) -> None:
        self._ports.discard(port)
        count = self.addresses.get(address, 1) - 1
        if count > 0:
            self.addresses[address] = count
        else:
            self.addresses.pop(address, None)


class _ClientPort(asyncio.Protocol):
    """One client's connection; the service's `Port`."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._service = front.service
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._client: Client | None = None
        self._max_frame = front.service.settings.limits.request_bytes
        self._in = b""
        self._out: list[bytes] = []
        self._is_flushing = False
        self._is_open = False
        self._is_first = True
        self._is_paused = False
        self._address = ""
        self._hello: asyncio.TimerHandle | None = None

    # What the service calls.

    def write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        if self._is_open:
            self._flush()
            self._is_open = False
            if self._transport is not None:
                self._transport.close()

    def pause(self) -> None:
        if self._is_open and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_open and self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
            if len(self._in) >= _LENGTH.size:
                self._loop.call_soon(self._consume)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else "?"
        self._is_open = True
        if not self._front.admit(self, self._address):
            self._is_open = False
            self._address = ""
            transport.abort()  # type: ignore[attr-defined]
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = Client(self, self._address, self._front.now_ms())
        self._service.opened(self._client)
        self._hello = self._loop.call_later(HELLO_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self._hello is not None:
            self._hello.cancel()
        if self._address:
            self._front.leave(self, self._address)
        if self._client is not None:
            self._service.closed(self._client)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self._in = self._in + data if self._in else data
        self._consume()

    def _consume(self) -> None:
        data, at, end = self._in, 0, len(self._in)
        client = self._client
        assert client is not None
        if self._is_first and end >= _WORD_BYTES:
            self._is_first = False
            if data[:_WORD_BYTES].isalpha() and self._answer_word(data[:_WORD_BYTES]):
                return
        try:
            while self._is_open and not self._is_paused and end - at >= 4:
                (length,) = _LENGTH.unpack_from(data, at)
                if not 0 <= length <= self._max_frame:
                    raise BadFrame(f"a frame of {length} bytes; at most {self._max_frame} are allowed")
                stop = at + 4 + length
                if stop > end:
                    break
                self._service.on_frame(client, data[at + 4 : stop])
                at = stop
        except BadFrame as error:
            logger.warning("client %s: %s; connection closed", self._address, error)
            self._abort()
            return
        self._in = data[at:] if at else data

    def _answer_word(self, word: bytes) -> bool:
        answer = self._front.words(word.decode())
        if answer is None or self._transport is None:
            return False
        self._transport.write(answer.encode())
        self.close()
        return True

    def _late(self) -> None:
        if self._is_open and self._client is not None and not self._client.is_connected:
            self._abort()

    def _abort(self) -> None:
        self._is_open = False
        if self._client is not None:
            self._service.closed(self._client)
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._out or self._transport is None or not self._is_open:
            self._out.clear()
            return
        data = b"".join(self._out)
        self._out.clear()
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES:
            logger.warning("client %s reads too slowly; connection closed", self._address)
            self._abort()
