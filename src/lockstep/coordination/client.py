"""Our asyncio client of a ZooKeeper ensemble (ours, or ZooKeeper itself).

    async with Client("127.0.0.1:2181,127.0.0.1:2182") as client:
        path = await client.create("/jobs/job-", b"payload", ephemeral=True, sequential=True)

It is impatient (RT-ZooKeeper, section 7): on a lost connection it tries another server at once and then one
every 50 ms. `patient=True` is the stock behaviour that the paper measures: a random pause of up to a second
before the first try, and one second before each further server.

A request that was under way when the connection broke raises `ConnectionLoss`: whether a write happened is
unknown, and only the caller can know how to find out. A request made while there is no connection waits
for one. Watches survive: the client names them to the next server, which reports what was missed.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from lockstep.coordination.connection import Connection, parse_servers
from lockstep.coordination.errors import ClientClosed, CoordinationError, NoNode, SessionExpired
from lockstep.coordination.multi import Transaction
from lockstep.coordination.states import State
from lockstep.coordination.tree import OPEN_ACL
from lockstep.coordination.wire.codes import Code, Event, Mode, Op
from lockstep.coordination.wire.jute import Reader, pack_buffer, pack_int, pack_string
from lockstep.coordination.wire.records import (
    Acl,
    Auth,
    Connect,
    Create,
    SetWatches,
    Stat,
    encode_connect,
    pack_acl,
    pack_create,
    pack_set_watches,
    read_acl,
    read_stat,
)
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

RETRY_SECONDS: Final = 0.05
HANDSHAKE_SECONDS: Final = 0.25
"""An impatient client gives a server this long to take its session over before it asks the next one."""
PATIENT_SECONDS: Final = 1.0


class WatchEvent(Struct, frozen=True):
    type: Event
    path: str


Watcher = Callable[[WatchEvent], None]


class Client:
    """A session with the ensemble. `on_state` is told every change of `state`; see `states.State`."""

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        timeout: float = 10.0,
        patient: bool = False,
        close_with_connection: bool = False,
        credentials: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        """`credentials` are `user:password` pairs. With `close_with_connection` our servers end the session,
        and remove its ephemeral nodes, as soon as its connection ends: others learn of a crash at once."""
        self._servers = parse_servers(servers)
        random.shuffle(self._servers)
        self._timeout = timeout
        self._patient = patient
        self._close_with_connection = close_with_connection
        self._credentials = list(credentials)
        self._tls = tls
        self._on_state = on_state
        self.state = State.CONNECTING
        self.session = 0
        self.timeout = timeout
        """The session timeout that the ensemble granted, in seconds."""
        self.server = ""
        """The server of the current or last connection."""
        self.last_zxid = 0
        self._password = bytes(16)
        self._connection: Connection | None = None
        self._connected: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._watches: tuple[dict[str, set[Watcher]], ...] = ({}, {}, {}, {}, {})
        self._next = 0

    async def __aenter__(self) -> "Client":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, *, deadline: float = 15.0) -> None:
        """Connect, or raise within `deadline` seconds."""
        self._loop = asyncio.get_running_loop()
        self._connected = self._loop.create_future()
        self._over: asyncio.Future[CoordinationError] = self._loop.create_future()
        self._runner = self._loop.create_task(self._run())
        try:
            await asyncio.wait_for(asyncio.shield(self._connected), deadline)
        except TimeoutError:
            await self.stop()
            raise LockstepError(
                f"none of {', '.join(f'{h}:{p}' for h, p in self._servers)} answers",
                hint="check the addresses, and `lockstep coord status` with the same list",
            ) from None

    async def stop(self) -> None:
        """End the session: its ephemeral nodes go at once."""
        if self.state is State.CLOSED:
            return
        connection = self._connection
        if connection is not None and connection.is_ready and self.state is State.CONNECTED:
            try:
                await asyncio.wait_for(connection.request(Op.CLOSE_SESSION), 2.0)
            except (TimeoutError, LockstepError):
                pass
        self._set_state(State.CLOSED)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self._connection is not None:
            self._connection.drop()
        self._end(ClientClosed("the client is closed", hint="start a new client"))

    def abort(self) -> None:
        """Drop everything without goodbye, as a crash of this process would."""
        self._set_state(State.CLOSED)
        if self._runner is not None:
            self._runner.cancel()
        if self._connection is not None:
            self._connection.drop()
        self._end(ClientClosed("the client is closed", hint="start a new client"))

    async def until(self, event: asyncio.Event) -> None:
        """Wait for something that a watch will set; raises if the session ends before."""
        waiting = self._loop.create_task(event.wait())
        try:
            await asyncio.wait((waiting, self._over), return_when=asyncio.FIRST_COMPLETED)
            if not event.is_set():
                raise self._over.result()
        finally:
            waiting.cancel()

    # Reading.

    async def get(self, path: str, *, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        body = await self._watched(Op.GET_DATA, path, watch, 0)
        data = body.buffer() or b""
        return data, read_stat(body)

    async def exists(self, path: str, *, watch: Watcher | None = None) -> Stat | None:
        try:
            return read_stat(await self._watched(Op.EXISTS, path, watch, 0))
        except NoNode:
            return None

    async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
        return (await self._watched(Op.GET_CHILDREN, path, watch, 2)).strings()

    async def children_and_stat(self, path: str) -> tuple[list[str], Stat]:
        body = await self._watched(Op.GET_CHILDREN2, path, None, 2)
        return body.strings(), read_stat(body)

    async def get_acl(self, path: str) -> tuple[list[Acl], Stat]:
        body = await self.request(Op.GET_ACL, pack_string(path))
        return body.vector(read_acl, 12), read_stat(body)

    async def sync(self, path: str = "/") -> None:
        """After this, reads see everything that was acknowledged anywhere before."""
        await self.request(Op.SYNC, pack_string(path))

    async def ephemerals(self, prefix: str = "/") -> list[str]:
        return (await self.request(Op.GET_EPHEMERALS, pack_string(prefix))).strings()

    async def count_below(self, path: str) -> int:
        return (await self.request(Op.GET_ALL_CHILDREN_NUMBER, pack_string(path))).int32()

    async def who_am_i(self) -> list[tuple[str, str]]:
        body = await self.request(Op.WHO_AM_I)
        return body.vector(lambda r: (r.string(), r.string()), 8)

    async def add_watch(self, path: str, watch: Watcher, *, recursive: bool = False) -> None:
        """A watch that stays: every event of the node, or of everything below it."""
        self._watches[4 if recursive else 3].setdefault(path, set()).add(watch)
        await self.request(Op.ADD_WATCH, pack_string(path) + pack_int(1 if recursive else 0))

    # Writing.

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        container: bool = False,
        ttl: float | None = None,
        acl: tuple[Acl, ...] = OPEN_ACL,
    ) -> str:
        """The path of the new node (a sequential one ends with its number)."""
        return (await self._create(path, data, ephemeral, sequential, container, ttl, acl))[0]

    async def create_and_stat(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> tuple[str, Stat]:
        return await self._create(path, data, ephemeral, sequential, False, None, OPEN_ACL)

    async def ensure(self, path: str) -> None:
        """Create the path and all above it, as far as they are missing."""
        if await self.exists(path) is None:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                try:
                    await self.create("/" + "/".join(parts[:depth]))
                except LockstepError as error:
                    if getattr(error, "code", None) != Code.NODE_EXISTS:
                        raise

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        body = pack_string(path) + pack_buffer(data) + pack_int(version)
        return read_stat(await self.request(Op.SET_DATA, body))

    async def delete(self, path: str, *, version: int = -1) -> None:
        await self.request(Op.DELETE, pack_string(path) + pack_int(version))

    async def set_acl(self, path: str, acl: Iterable[Acl], *, version: int = -1) -> Stat:
        body = pack_string(path) + pack_acl(acl) + pack_int(version)
        return read_stat(await self.request(Op.SET_ACL, body))

    def transaction(self) -> Transaction:
        """Operations that happen all or not at all."""
        return Transaction(self.request)

    async def request(
        self, op: int, body: bytes = b"", answered: Callable[[int], None] | None = None
    ) -> Reader:
        """Any request: the body of its reply, or an error of `coordination.errors`."""
        connection = self._connection
        if connection is None or not connection.is_ready:
            connection = await self._wait_connected()
        return await connection.request(op, body, answered)

    # Inside.

    async def _create(
        self,
        path: str,
        data: bytes,
        ephemeral: bool,
        sequential: bool,
        container: bool,
        ttl: float | None,
        acl: tuple[Acl, ...],
    ) -> tuple[str, Stat]:
        if ttl is not None:
            mode = Mode.TTL_SEQUENTIAL if sequential else Mode.TTL
            request = Create(path, data, acl, mode, int(ttl * 1000))
            body = await self.request(Op.CREATE_TTL, pack_create(request, with_ttl=True))
        elif container:
            body = await self.request(
                Op.CREATE_CONTAINER, pack_create(Create(path, data, acl, Mode.CONTAINER))
            )
        else:
            flags = (1 if ephemeral else 0) | (2 if sequential else 0)
            body = await self.request(Op.CREATE2, pack_create(Create(path, data, acl, flags)))
        return body.string(), read_stat(body)

    async def _watched(self, op: int, path: str, watch: Watcher | None, kind: int) -> Reader:
        if watch is None:
            return await self.request(op, pack_string(path) + b"\0")

        def answered(code: int) -> None:
            if code == Code.OK:
                self._watches[kind].setdefault(path, set()).add(watch)
            elif code == Code.NO_NODE and op == Op.EXISTS:
                self._watches[1].setdefault(path, set()).add(watch)

        return await self.request(op, pack_string(path) + b"\1", answered)

    async def _wait_connected(self) -> Connection:
        while True:
            if self.state is State.EXPIRED:
                raise SessionExpired("the session has expired", hint="start a new client")
            if self.state is State.CLOSED or self._connected is None:
                raise ClientClosed("the client is closed", hint="start a new client")
            await asyncio.shield(self._connected)
            if self._connection is not None and self._connection.is_ready:
                return self._connection
            await asyncio.sleep(0)

    async def _run(self) -> None:
        """Keep one connection up for as long as the session lives."""
        fresh = True
        while self.state not in (State.EXPIRED, State.CLOSED):
            if not fresh:
                await asyncio.sleep(random.random() * PATIENT_SECONDS if self._patient else 0)
            attempt = 0
            while not await self._attempt(attempt):
                if self.state in (State.EXPIRED, State.CLOSED):
                    return
                attempt += 1
                await asyncio.sleep(PATIENT_SECONDS if self._patient else self._impatience(attempt))
            fresh = False
            assert self._connection is not None
            await self._connection.lost
            if self.state is State.CONNECTED:
                self._connected = self._loop.create_future()
                self._set_state(State.SUSPENDED)

    def _impatience(self, attempt: int) -> float:
        """The first round through the list makes no pause: one dead server costs nothing."""
        return 0.0 if attempt < len(self._servers) else RETRY_SECONDS

    async def _attempt(self, attempt: int) -> bool:
        host, port = self._servers[self._next % len(self._servers)]
        self._next += 1
        connection = Connection(self._loop, self._on_event, self._on_zxid)
        granted = int(self.timeout * 1000)
        connect = Connect(
            0,
            self.last_zxid,
            granted,
            self.session,
            self._password,
            False,
            self._close_with_connection,
        )
        patience = self._timeout if self._patient or not self.session else HANDSHAKE_SECONDS
        try:
            async with asyncio.timeout(max(patience, HANDSHAKE_SECONDS)):
                await connection.open(host, port, self._tls)
                timeout, session, password = await connection.handshake(encode_connect(connect))
        except (OSError, TimeoutError, LockstepError, asyncio.CancelledError) as error:
            connection.drop()
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        if timeout == 0:
            connection.drop()
            self._set_state(State.EXPIRED)
            self._end(SessionExpired("the session has expired", hint="start a new client"))
            return False
        self.session, self._password, self.timeout = session, password, timeout / 1000
        self.server = f"{host}:{port}"
        self._connection = connection
        self._restore(connection)
        connection.keep_alive(self.timeout)
        self._set_state(State.CONNECTED)
        assert self._connected is not None
        if not self._connected.done():
            self._connected.set_result(None)
        return True

    def _restore(self, connection: Connection) -> None:
        """Prove who we are and name our watches before anything else is asked."""
        for credential in self._credentials:
            auth = Auth(0, "digest", credential.encode())
            connection.send_auth(pack_int(0) + pack_string(auth.scheme) + pack_buffer(auth.auth))
        lists = [sorted(paths) for paths in self._watches]
        if any(lists):
            data, exist, child, persistent, recursive = lists
            request = SetWatches(self.last_zxid, data, exist, child, persistent, recursive)
            connection.send_watches(pack_set_watches(request))
        connection.is_ready = True

    def _on_zxid(self, zxid: int) -> None:
        if zxid > self.last_zxid:
            self.last_zxid = zxid

    def _on_event(self, kind: int, path: str) -> None:
        event = WatchEvent(Event(kind), path)
        data, exist, child, persistent, recursive = self._watches
        hearers: dict[Watcher, None] = {}
        if kind != Event.CHILDREN_CHANGED:
            hearers.update(dict.fromkeys(data.pop(path, ())))
            hearers.update(dict.fromkeys(exist.pop(path, ())))
        if kind in (Event.CHILDREN_CHANGED, Event.DELETED):
            hearers.update(dict.fromkeys(child.pop(path, ())))
        hearers.update(dict.fromkeys(persistent.get(path, ())))
        for root, watchers in recursive.items():
            if path == root or path.startswith(root if root == "/" else root + "/"):
                hearers.update(dict.fromkeys(watchers))
        for watcher in hearers:
            try:
                watcher(event)
            except Exception:
                logger.exception("a watcher of %s failed", path)

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)

    def _end(self, error: CoordinationError) -> None:
        """No more connection will come: tell everybody who waits."""
        if self._connected is None:
            return
        if not self._over.done():
            self._over.set_result(error)
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()
