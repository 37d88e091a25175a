"""Connections between nodes, and from clients: who is reached, who may speak, who is gone.

Every pair of nodes shares one connection, dialled by the node with the smaller id; each node listens on one
port for both its peers and its clients. A connection is *up* once both sides have said `Hello` with the same
protocol and version. When it breaks (the kernel closes a dead process's sockets at once) the owner is told,
and the dialling side tries again after 10, 20, 40, 80, 100, 100, ... ms.

A node that comes back before its death was noticed replaces its own old connection: the owner sees the peer
go down, then up.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger
from lockstep.protocol.frames import HELLO_BYTES, Address, Connection, Hello, Limits, Refused, Request
from lockstep.protocol.machine import ClientId, NodeId

logger = get_logger(__name__)

FIRST_BACKOFF: Final = 0.010
LAST_BACKOFF: Final = 0.100
MAX_ID: Final = 200


@dataclass(frozen=True)
class Receiver:
    """What the transport tells its owner. Each call is a turn of its own, never inside another."""

    message: Callable[[NodeId, bytes], None]
    peer: Callable[[NodeId, bool], None]
    request: Callable[[ClientId, int, bytes], None]


class Transport:
    """The network side of one node."""

    def __init__(
        self,
        *,
        node: NodeId,
        listen: Address,
        protocol: str,
        version: int,
        receiver: Receiver,
        limits: Limits,
    ) -> None:
        self._node = node
        self._listen = listen
        self._protocol = protocol
        self._version = version
        self._receiver = receiver
        self._limits = limits
        self._peers: dict[NodeId, Address] = {}
        self._up: dict[NodeId, Connection] = {}
        self._clients: dict[ClientId, Connection] = {}
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._dialling: dict[NodeId, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._paused = False
        self._closed = False

    @property
    def address(self) -> Address:
        """Where this node listens (the real port, if port 0 was asked for)."""
        return self._listen

    @property
    def up(self) -> frozenset[NodeId]:
        return frozenset(self._up)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accepted, *self._listen, backlog=512)
        except OSError as error:
            raise LockstepError(
                f"node {self._node} cannot listen on {self._listen}: {error.strerror or error}",
                hint="free that port or name another one (port 0 takes any free one)",
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self._listen = Address(host, port)

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """The peers from now on. New ones are dialled; connections to others are closed."""
        moved = {peer for peer, address in self._peers.items() if peers.get(peer) != address}
        self._peers = {peer: Address(*where) for peer, where in peers.items() if peer != self._node}
        for peer in moved:
            if (task := self._dialling.pop(peer, None)) is not None:
                task.cancel()
            if (connection := self._up.get(peer)) is not None:
                connection.drop("no longer a peer")
        for peer in self._peers:
            self._dial(peer)

    def send(self, peer: NodeId, payload: bytes) -> bool:
        """False if there is no connection, or no such peer: the message is lost."""
        connection = self._up.get(peer)
        if connection is None:
            return False
        connection.send(payload)
        return True

    def reply(self, client: ClientId, payload: bytes) -> None:
        """A client that has gone will ask again."""
        if (connection := self._clients.get(client)) is not None:
            connection.send(payload)

    def pause(self, paused: bool) -> None:
        self._paused = paused
        for connection in (*self._up.values(), *self._clients.values()):
            connection.pause(paused)

    def close(self) -> None:
        """Close everything at once, as a crash would."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in self._dialling.values():
            task.cancel()
        for timer in self._strangers.values():
            timer.cancel()
        for connection in (*self._up.values(), *self._clients.values(), *self._strangers):
            connection.drop("this node stops")

    # Accepting.

    def _accepted(self) -> Connection:
        return self._connection(self._first_frame, opened=self._stranger)

    def _connection(
        self,
        receive: Callable[[Connection, bytes], None],
        *,
        opened: Callable[[Connection], None],
    ) -> Connection:
        return Connection(
            receive, self._lost, opened=opened, max_frame=HELLO_BYTES, max_queue=self._limits.queue
        )

    def _stranger(self, connection: Connection) -> None:
        if self._closed or len(self._strangers) >= self._limits.strangers:
            connection.drop("too many connections that have not said hello")
            return
        self._strangers[connection] = asyncio.get_running_loop().call_later(
            self._limits.hello_seconds, connection.drop, "did not say hello in time"
        )

    def _known(self, connection: Connection) -> None:
        if (timer := self._strangers.pop(connection, None)) is not None:
            timer.cancel()

    def _first_frame(self, connection: Connection, payload: bytes) -> None:
        hello = _HELLO.decode(payload)
        if isinstance(hello, Refused):
            connection.drop(f"refused: {hello.reason}")
            return
        reason = self._objection(hello)
        if reason:
            logger.warning("refused %s at %s: %s", hello.sender[:MAX_ID], connection.other, reason)
            connection.refuse(reason)
            return
        connection.send(self._hello(hello.sender))
        if hello.client:
            self._client_up(hello.sender, connection)
        else:
            self._peer_up(hello.sender, connection)

    def _objection(self, hello: Hello) -> str:
        if not 0 < len(hello.sender) <= MAX_ID:
            return f"an id has 1 to {MAX_ID} characters"
        if hello.to and hello.to != self._node:
            return f"this is node {self._node}, not {hello.to[:MAX_ID]}"
        if (hello.protocol, hello.version) != (self._protocol, self._version):
            return f"this node speaks {self._protocol} version {self._version}"
        if hello.client:
            full = len(self._clients) >= self._limits.clients and hello.sender not in self._clients
            return f"{self._limits.clients} clients are connected already" if full else ""
        return "" if hello.sender in self._peers else f"node {self._node} has no such peer"

    def _hello(self, to: str) -> bytes:
        return msgspec.msgpack.encode(Hello(self._node, self._protocol, self._version, to))

    # Dialling.

    def _dial(self, peer: NodeId) -> None:
        """Keep dialling until the connection is up; one task per peer at most."""
        if self._closed or peer < self._node or peer in self._up or peer not in self._peers:
            return
        task = self._dialling.get(peer)
        if task is None or task.done():
            self._dialling[peer] = asyncio.get_running_loop().create_task(self._keep_dialling(peer))

    async def _keep_dialling(self, peer: NodeId) -> None:
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF
        told = ""
        while not self._closed:
            settled: asyncio.Future[str] = loop.create_future()
            address = self._peers[peer]
            try:
                await loop.create_connection(lambda: self._dialled(peer, settled), *address)  # noqa: B023
                problem = await settled
                if not problem:
                    return
            except OSError as error:
                problem = error.strerror or str(error)
            if problem != told:
                told = problem
                logger.info("%s cannot reach %s at %s: %s", self._node, peer, address, problem)
            await asyncio.sleep(backoff * random.uniform(0.75, 1.25))
            backoff = min(2 * backoff, LAST_BACKOFF)

    def _dialled(self, peer: NodeId, settled: "asyncio.Future[str]") -> Connection:
        def opened(connection: Connection) -> None:
            self._stranger(connection)
            connection.send(self._hello(peer))

        def answered(connection: Connection, payload: bytes) -> None:
            hello = _HELLO.decode(payload)
            if isinstance(hello, Refused):
                connection.drop(f"refused: {hello.reason[:500]}")
            elif (hello.sender, hello.protocol, hello.version) != (peer, self._protocol, self._version):
                connection.drop(f"{hello.sender[:MAX_ID]} answered in its place")
            elif settled.done():
                connection.drop("no longer a peer")
            else:
                settled.set_result("")
                connection.lost = self._lost
                self._peer_up(peer, connection)

        def gone(connection: Connection, reason: str) -> None:
            self._known(connection)
            if not settled.done():
                settled.set_result(reason)

        connection = self._connection(answered, opened=opened)
        connection.lost = gone
        return connection

    # Up and down.

    def _peer_up(self, peer: NodeId, connection: Connection) -> None:
        self._known(connection)
        old = self._up.pop(peer, None)
        if old is not None:
            old.drop("replaced by a newer connection")
            self._receiver.peer(peer, False)
            if self._closed:
                return
        message = self._receiver.message
        connection.other = peer
        connection.max_frame = self._limits.frame
        connection.receive = lambda _, payload: message(peer, payload)
        self._up[peer] = connection
        if self._paused:
            connection.pause(True)
        self._receiver.peer(peer, True)

    def _client_up(self, client: ClientId, connection: Connection) -> None:
        self._known(connection)
        if (old := self._clients.get(client)) is not None:
            old.drop("replaced by a newer connection")

        def receive(_: Connection, payload: bytes) -> None:
            asked = _REQUEST.decode(payload)
            self._receiver.request(client, asked.request, asked.command)

        connection.other = f"client {client} at {connection.other}"
        connection.max_frame = self._limits.client_frame
        connection.receive = receive
        self._clients[client] = connection
        if self._paused:
            connection.pause(True)

    def _lost(self, connection: Connection, reason: str) -> None:
        if connection in self._strangers:
            self._known(connection)
            logger.info("%s left before saying hello: %s", connection.other, reason)
            return
        for client, known in self._clients.items():
            if known is connection:
                del self._clients[client]
                return
        for peer, known in self._up.items():
            if known is connection:
                del self._up[peer]
                if not self._closed:
                    logger.info("%s lost its connection to %s: %s", self._node, peer, reason)
                    self._receiver.peer(peer, False)
                    self._dial(peer)
                return


_HELLO: Final = msgspec.msgpack.Decoder(Hello | Refused)
_REQUEST: Final = msgspec.msgpack.Decoder(Request)
