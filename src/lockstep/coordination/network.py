"""The servers' network: the election mesh and the quorum star, over separate connections (paper 3.2).

The mesh is permanent: of two servers the one with the smaller id dials, and dials again after 10 to 100 ms.
A quorum connection is dialled by a follower when its machine sends `FollowerInfo`, and lives until the machine
says that it is over (`zab.interface`, rules 10 and 11).

Nobody speaks before both sides have proven that they know the ensemble's secret: the dialler greets with a
nonce, the other side answers with its own and a proof over both, the dialler proves in turn. The proofs name
the ensemble, both ids and the channel, so that none can be used elsewhere. Without a secret the same exchange
still finds a wrong list of servers and two servers with one id. TLS, if given, lies below all this.
"""

import asyncio
import hmac
import os
import random
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from lockstep.coordination.zab.messages import MESSAGE, Channel
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger
from lockstep.protocol.frames import HELLO_BYTES, Address, Connection

logger = get_logger(__name__)

PEER_FRAME: Final = 256 * 2**20
PEER_QUEUE: Final = 512 * 2**20
HELLO_SECONDS: Final = 2.0
FIRST_BACKOFF: Final = 0.010
LAST_BACKOFF: Final = 0.100
STRANGERS: Final = 100


class Greeting(Struct, frozen=True, tag="greeting"):
    channel: Channel
    ensemble: str
    sender: int
    to: int
    incarnation: int
    nonce: bytes


class Challenge(Struct, frozen=True, tag="challenge"):
    nonce: bytes
    proof: bytes


class Proof(Struct, frozen=True, tag="proof"):
    proof: bytes


class Denied(Struct, frozen=True, tag="denied"):
    reason: str


_hello = msgspec.msgpack.Decoder(Greeting | Challenge | Proof | Denied)
_message: "msgspec.msgpack.Decoder[MESSAGE]" = msgspec.msgpack.Decoder(MESSAGE)
_encode = msgspec.msgpack.Encoder().encode

decode_hello = _hello.decode
OnMessage = Callable[[int, MESSAGE], None]
OnPeer = Callable[[int, Channel, bool], None]


class Network:
    """All connections of server `me` to the others."""

    def __init__(
        self,
        me: int,
        peers: Mapping[int, Address],
        *,
        ensemble: str,
        incarnation: int,
        on_message: OnMessage,
        on_peer: OnPeer,
        secret: bytes = b"",
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        self._me = me
        self._peers = {peer: address for peer, address in peers.items() if peer != me}
        self._ensemble = ensemble
        self._incarnation = incarnation
        self._on_message = on_message
        self._on_peer = on_peer
        self._secret = secret
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._up: dict[tuple[int, Channel], Connection] = {}
        self._incarnations: dict[tuple[int, Channel], int] = {}
        self._waiting: dict[int, list[bytes]] = {}
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closed = False
        self._last: tuple[MESSAGE | None, bytes] = (None, b"")
        self.denials: dict[int, str] = {}
        """Why another server would not speak with us, for people who ask for the status."""

    async def open(self, listen: Address) -> Address:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._accepted, *listen, ssl=self._server_tls, backlog=128
            )
        except OSError as error:
            raise LockstepError(
                f"server {self._me} cannot listen for the others on {listen}: {error.strerror or error}",
                hint="free that port, or check the addresses in the list of servers",
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    def start(self) -> None:
        """Dial the mesh."""
        for peer in self._peers:
            if peer > self._me:
                self._spawn(self._keep_dialling(peer))

    def send(self, peer: int, message: MESSAGE, channel: Channel, *, opens: bool) -> None:
        last, payload = self._last
        if message is not last:  # a broadcast is encoded once
            payload = _encode(message)
            self._last = (message, payload)
        connection = self._up.get((peer, channel))
        if connection is not None and not opens:
            connection.send(payload)
        elif opens and peer in self._peers:
            if connection is not None:
                self._forget(peer, channel)
                connection.drop("replaced by a new attempt to follow")
            dialling = peer in self._waiting
            self._waiting.setdefault(peer, []).append(payload)
            if not dialling:
                self._spawn(self._dial_quorum(peer))

    def close_quorum(self, peer: int | None = None) -> None:
        """Close the quorum connection with one server, or all of them."""
        for key in [key for key in self._up if key[1] == "quorum" and peer in (None, key[0])]:
            connection = self._up[key]
            self._forget(*key)
            connection.drop("no longer needed")

    @property
    def up(self) -> frozenset[tuple[int, Channel]]:
        return frozenset(self._up)

    def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for timer in self._strangers.values():
            timer.cancel()
        for connection in (*self._up.values(), *self._strangers):
            connection.drop("this server stops")

    # Dialling.

    async def _keep_dialling(self, peer: int) -> None:
        backoff = FIRST_BACKOFF
        while not self._closed and (peer, "election") not in self._up:
            if await self._dial(peer, "election"):
                return
            await asyncio.sleep(backoff * random.uniform(0.75, 1.25))
            backoff = min(2 * backoff, LAST_BACKOFF)

    async def _dial_quorum(self, peer: int) -> None:
        connected = await self._dial(peer, "quorum")
        waiting = self._waiting.pop(peer, [])
        if not connected:
            self._on_peer(peer, "quorum", False)
        else:
            for payload in waiting[-1:]:  # an older attempt has been given up
                connection = self._up.get((peer, "quorum"))
                if connection is not None:
                    connection.send(payload)

    async def _dial(self, peer: int, channel: Channel) -> bool:
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[bool] = loop.create_future()
        greeting = Greeting(channel, self._ensemble, self._me, peer, self._incarnation, os.urandom(16))

        def opened(connection: Connection) -> None:
            self._stranger(connection)
            connection.send(_encode(greeting))

        def answered(connection: Connection, payload: bytes) -> None:
            answer = _hello.decode(payload)
            match answer:
                case Challenge(nonce, proof) if self._proves(proof, "accept", greeting, nonce):
                    connection.send(_encode(Proof(self._proof("dial", greeting, nonce))))
                    self.denials.pop(peer, None)
                    self._establish(peer, channel, connection, 0)
                    if not settled.done():
                        settled.set_result(True)
                case Denied(reason):
                    self._note_denial(peer, reason[:500])
                    connection.drop(f"denied: {reason[:500]}")
                case _:
                    self._note_denial(peer, "it does not know the ensemble's secret")
                    connection.drop("it does not know the ensemble's secret")

        def lost(connection: Connection, reason: str) -> None:
            self._lost(connection, reason)
            if not settled.done():
                settled.set_result(False)

        try:
            await loop.create_connection(
                lambda: Connection(
                    answered, lost, opened=opened, max_frame=HELLO_BYTES, max_queue=PEER_QUEUE
                ),
                *self._peers[peer],
                ssl=self._client_tls,
                server_hostname="" if self._client_tls is not None else None,
            )
        except (OSError, ssl.SSLError):
            return False
        return await settled

    def _note_denial(self, peer: int, reason: str) -> None:
        if self.denials.get(peer) != reason:
            self.denials[peer] = reason
            logger.error("server %d refuses server %d: %s", peer, self._me, reason)

    # Accepting.

    def _accepted(self) -> Connection:
        return Connection(
            self._first_frame, self._lost, opened=self._stranger, max_frame=HELLO_BYTES, max_queue=PEER_QUEUE
        )

    def _stranger(self, connection: Connection) -> None:
        if self._closed or len(self._strangers) >= STRANGERS:
            connection.drop("too many connections without a greeting")
            return
        loop = asyncio.get_running_loop()
        late = partial(connection.drop, "no greeting in time")
        self._strangers[connection] = loop.call_later(HELLO_SECONDS, late)

    def _first_frame(self, connection: Connection, payload: bytes) -> None:
        greeting = _hello.decode(payload)
        if not isinstance(greeting, Greeting):
            connection.drop("it did not greet")
            return
        reason = self._objection(greeting)
        if reason:
            logger.error(
                "server %d refuses %s (as server %d): %s", self._me, connection.other, greeting.sender, reason
            )
            connection.send(_encode(Denied(reason)))
            asyncio.get_running_loop().call_later(0.1, connection.drop, reason)
            return
        nonce = os.urandom(16)

        def proven(connection: Connection, payload: bytes) -> None:
            answer = _hello.decode(payload)
            if isinstance(answer, Proof) and self._proves(answer.proof, "dial", greeting, nonce):
                self._establish(greeting.sender, greeting.channel, connection, greeting.incarnation)
            else:
                logger.error("%s does not know the ensemble's secret", connection.other)
                connection.drop("it does not know the ensemble's secret")

        connection.receive = proven
        connection.send(_encode(Challenge(nonce, self._proof("accept", greeting, nonce))))

    def _objection(self, greeting: Greeting) -> str:
        if greeting.ensemble != self._ensemble:
            return "it belongs to another ensemble: compare the lists of servers"
        if greeting.to != self._me:
            return f"this is server {self._me}, not {greeting.to}: compare the lists of servers"
        if greeting.sender == self._me:
            return f"this is server {self._me} too: two servers have one id"
        if greeting.sender not in self._peers:
            return f"there is no server {greeting.sender} in the list of servers"
        known = self._incarnations.get((greeting.sender, "election"), 0)
        if greeting.channel == "election" and known not in (0, greeting.incarnation):
            return f"server {greeting.sender} is connected already: do two servers have one id?"
        return ""

    def _proof(self, role: str, greeting: Greeting, nonce: bytes) -> bytes:
        return hmac.digest(self._secret or b"open", _encode((role, greeting, nonce)), "sha256")

    def _proves(self, proof: bytes, role: str, greeting: Greeting, nonce: bytes) -> bool:
        return hmac.compare_digest(proof, self._proof(role, greeting, nonce))

    # Up and down.

    def _establish(self, peer: int, channel: Channel, connection: Connection, incarnation: int) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        old = self._up.get((peer, channel))
        if old is not None:
            self._forget(peer, channel)
            old.drop("replaced by a newer connection")
            self._on_peer(peer, channel, False)
        connection.other = f"server {peer} ({channel})"
        connection.max_frame = PEER_FRAME
        connection.receive = lambda _, payload: self._on_message(peer, _message.decode(payload))
        self._up[peer, channel] = connection
        self._incarnations[peer, channel] = incarnation
        self._on_peer(peer, channel, True)

    def _forget(self, peer: int, channel: Channel) -> None:
        self._up.pop((peer, channel), None)
        self._incarnations.pop((peer, channel), None)

    def _lost(self, connection: Connection, reason: str) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        for (peer, channel), known in self._up.items():
            if known is connection:
                self._forget(peer, channel)
                if not self._closed:
                    logger.info("server %d lost its %s connection to %d: %s", self._me, channel, peer, reason)
                    self._on_peer(peer, channel, False)
                    if channel == "election" and peer > self._me:
                        self._spawn(self._keep_dialling(peer))
                return

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
