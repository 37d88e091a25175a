"""A client of a protocol that runs in other processes: send a command to a node, await the reply.

The client keeps one connection to one of the nodes and moves on to the next when it breaks. Commands that
had no reply are sent again under the same number, so a machine may see one twice (it knows the client's id
and the number). Which node can answer is the protocol's affair: a reply that names the leader is a result
like any other, and `prefer` follows it.
"""

import asyncio
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

from lockstep.errors import LockstepError, UsageError
from lockstep.observe.logger import get_logger
from lockstep.protocol.frames import Address, Connection, Hello, Limits, Refused, Request, Response
from lockstep.protocol.machine import Machine, Message
from lockstep.protocol.transport import FIRST_BACKOFF, LAST_BACKOFF

logger = get_logger(__name__)


class Client:
    """`async with Client(Counter, [Address(...), ...]) as client: await client.command(Increment(3))`"""

    def __init__(
        self,
        machine: type[Machine],
        nodes: Sequence[Address],
        *,
        client: str = "",
        limits: Limits | None = None,
        max_waiting: int = 10_000,
    ) -> None:
        """`client` names this client for good; a new random name is taken if it is left empty."""
        if not nodes:
            raise UsageError("a client needs the address of at least one node")
        self.client = client or f"client-{secrets.token_hex(6)}"
        self._protocol = machine.PROTOCOL or machine.__name__
        self._version = machine.VERSION
        self._nodes = [Address(*node) for node in nodes]
        self._limits = limits or Limits()
        self._max_waiting = max_waiting
        self._result = msgspec.msgpack.Decoder(machine.RESULTS)
        self._encode = msgspec.msgpack.Encoder().encode
        self._connection: Connection | None = None
        self._dialling: Connection | None = None
        self._requests = 0
        self._waiting: dict[int, tuple[bytes, asyncio.Future[Any]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._problem = "not connected yet"

    async def __aenter__(self) -> "Client":
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for _, reply in list(self._waiting.values()):
            reply.cancel()

    async def command(self, command: Message, *, timeout: float = 10.0) -> Any:
        """The node's reply. After a timeout the command may or may not have been carried out."""
        if self._task is None:
            raise UsageError("the client is not open", hint="use it in `async with Client(...) as client:`")
        if len(self._waiting) >= self._max_waiting:
            raise LockstepError(f"{self._max_waiting} commands await a reply", hint="send fewer at a time")
        self._requests += 1
        number = self._requests
        payload = self._encode(Request(number, self._encode(command)))
        if len(payload) > self._limits.client_frame:
            raise UsageError(f"a command of {len(payload)} bytes exceeds {self._limits.client_frame}")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (payload, reply)
        if self._connection is not None:
            self._connection.send(payload)
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise LockstepError(
                f"no reply within {timeout:g} s from {', '.join(map(str, self._nodes))} ({self._problem})",
                hint="check that the nodes run; the command may have been carried out",
            ) from None
        finally:
            del self._waiting[number]

    def prefer(self, node: Address) -> None:
        """Talk to this node from now on (and to the others when it fails)."""
        node = Address(*node)
        if self._nodes[0] != node:
            self._nodes = [node, *(other for other in self._nodes if other != node)]
            if self._connection is not None:
                self._connection.drop("another node is preferred")

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF
        while True:
            node = self._nodes[0]
            gone: asyncio.Future[str] = loop.create_future()
            greeted = False
            try:
                async with asyncio.timeout(self._limits.hello_seconds):
                    welcome: asyncio.Future[None] = loop.create_future()
                    await loop.create_connection(lambda: self._dialled(welcome, gone), *node)  # noqa: B023
                    await asyncio.wait((welcome, gone), return_when=asyncio.FIRST_COMPLETED)
                greeted = welcome.done()
                self._problem = await gone
            except TimeoutError:
                self._problem = f"{node} does not answer"
            except OSError as error:
                self._problem = f"{node}: {error.strerror or error}"
            finally:
                self._connection = None
                if self._dialling is not None:
                    self._dialling.drop("the client gives up on it")
            if self._nodes[0] == node:
                self._nodes.append(self._nodes.pop(0))
            if greeted:
                backoff = FIRST_BACKOFF
            else:
                logger.info("%s: %s", self.client, self._problem)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, LAST_BACKOFF)

    def _dialled(self, welcome: "asyncio.Future[None]", gone: "asyncio.Future[str]") -> Connection:
        def opened(connection: Connection) -> None:
            hello = Hello(self.client, self._protocol, self._version, client=True)
            connection.send(self._encode(hello))

        def greeted(connection: Connection, payload: bytes) -> None:
            match _FIRST.decode(payload):
                case Refused(reason):
                    connection.drop(f"refused: {reason}")
                case Hello() if not welcome.done():
                    connection.receive = self._received
                    self._connection = connection
                    welcome.set_result(None)
                    for request, _ in self._waiting.values():
                        connection.send(request)

        def lost(connection: Connection, reason: str) -> None:
            if not gone.done():
                gone.set_result(reason)

        self._dialling = Connection(
            greeted, lost, opened=opened, max_frame=self._limits.frame, max_queue=self._limits.queue
        )
        return self._dialling

    def _received(self, connection: Connection, payload: bytes) -> None:
        response = _RESPONSE.decode(payload)
        if (waiting := self._waiting.get(response.request)) is not None:
            result = self._result.decode(response.result)
            if not waiting[1].done():
                waiting[1].set_result(result)


_FIRST = msgspec.msgpack.Decoder(Hello | Refused)
_RESPONSE = msgspec.msgpack.Decoder(Response)
