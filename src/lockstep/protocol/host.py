"""The real host: runs a protocol machine on asyncio, TCP, the disk and the shared log.

It is a `Runner`: one input at a time, and crash-only. `Halt`, an error inside the machine, or a disk that does
not keep records ends the node at once; a supervisor starts it again from its durable history.

    host = Host(Counter(), node="a", peers={"b": Address("127.0.0.1", 7001)}, folder=Path("data/a"))
    await host.start()
    total = await host.command(Increment(3))

`serve` runs one host as a whole process.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Log
from lockstep.observe.logger import get_logger
from lockstep.protocol.commit import GroupCommit
from lockstep.protocol.feed import Feed
from lockstep.protocol.frames import Address, Limits, Response
from lockstep.protocol.machine import (
    Append,
    CancelTimer,
    ClientId,
    Compact,
    Deliver,
    Effect,
    Effects,
    Halt,
    LogRecord,
    Machine,
    Message,
    NodeId,
    Note,
    Persist,
    Reply,
    Send,
    SetTimer,
    Subscribe,
    Token,
)
from lockstep.protocol.runner import Runner, serve
from lockstep.protocol.storage import CorruptHistoryError, History
from lockstep.protocol.transport import Receiver, Transport

logger = get_logger(__name__)

__all__ = ["HaltedError", "Host", "serve"]

LOOPBACK: Final = Address("127.0.0.1", 0)
MAX_COMMANDS: Final = 100_000
"""Local commands that may await their reply."""


class HaltedError(LockstepError):
    """The node ended itself; start it again from its durable history. Its process exits with 3."""

    exit_code = 3


class Host(Runner):
    """Runs one machine as one node."""

    def __init__(
        self,
        machine: Machine,
        *,
        node: NodeId,
        peers: Mapping[NodeId, Address] | None = None,
        listen: Address = LOOPBACK,
        folder: Path | None = None,
        log: Log | None = None,
        deliver: Callable[[Any], None] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`peers` may name this node too (one table for all nodes). A machine that persists needs
        `folder`, one that appends or subscribes needs `log`. `deliver` gets the protocol's output."""
        super().__init__(f"node {node}", machine.on_timer)
        kind = type(machine)
        self.node = node
        self._machine = machine
        self._peers = dict(peers or {})
        self._folder = folder
        self._limits = limits or Limits()
        self._deliver = deliver
        self._encode = msgspec.msgpack.Encoder().encode
        self._message = _decoder(kind, "MESSAGES")
        self._record = _decoder(kind, "RECORDS")
        self._command = _decoder(kind, "COMMANDS")
        self._transport = Transport(
            node=node,
            listen=listen,
            protocol=kind.PROTOCOL or kind.__name__,
            version=kind.VERSION,
            receiver=Receiver(self._on_message, self._on_peer, self._on_request),
            limits=self._limits,
        )
        self._feed = Feed(log, self._on_record, self._on_appended, self._on_append_failed, self._fail)
        self._client = f"{node}/{secrets.token_hex(6)}"
        self._requests = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._sent: tuple[Message, bytes] = (None, b"")
        self.lost_sends = 0
        """Messages that had no connection to leave by."""

    @property
    def address(self) -> Address:
        return self._transport.address

    @property
    def up(self) -> frozenset[NodeId]:
        """The peers that are connected now."""
        return self._transport.up

    async def start(self) -> None:
        """Recover the durable history, start the machine, listen, and dial the peers."""
        self._prepare()
        durable: list[Message] = []
        if self._folder is not None:
            history = await self._loop.run_in_executor(None, History, self._folder)
            try:
                durable = [self._recovered(record) for record in history.recovered]
            except BaseException:
                history.close()
                raise
            history.recovered.clear()
            self._commit = GroupCommit(
                history, confirm=self._on_persisted, fail=self._fail, pressure=self._transport.pause
            )
        try:
            await self._transport.open()
        except BaseException:
            if self._commit is not None:
                await self._commit.close()
            raise
        self._running = True
        self._input(self._machine.on_start, durable)
        if self._running:
            self._transport.set_peers(self._peers)

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """Change who this node's peers are, and where."""
        self._peers = dict(peers)
        if self._running:
            self._transport.set_peers(self._peers)

    def submit(self, command: Message) -> "asyncio.Future[Any]":
        """Give the machine a command of this process; the future holds what it replies."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if not self._running:
            reply.set_exception(HaltedError(f"node {self.node} does not run"))
        elif len(self._replies) >= MAX_COMMANDS:
            reply.set_exception(
                LockstepError(f"{MAX_COMMANDS} commands await a reply already", hint="send fewer at a time")
            )
        else:
            self._requests += 1
            self._replies[self._requests] = reply
            request = self._requests
            reply.add_done_callback(lambda _: self._replies.pop(request, None))
            self._loop.call_soon(self._input, self._machine.on_command, self._client, request, command)
        return reply

    async def command(self, command: Message) -> Any:
        return await self.submit(command)

    async def stop(self) -> None:
        self._end(None)
        await self._feed.closed()
        await super().stop()

    # Inputs.

    def _on_message(self, peer: NodeId, payload: bytes) -> None:
        self._input(self._machine.on_message, peer, self._message.decode(payload))

    def _on_peer(self, peer: NodeId, up: bool) -> None:
        self._input(self._machine.on_peer, peer, up)

    def _on_request(self, client: ClientId, request: int, command: bytes) -> None:
        self._input(self._machine.on_command, client, request, self._command.decode(command))

    def _on_persisted(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._input(self._machine.on_persisted, token)

    def _on_record(self, record: LogRecord) -> None:
        self._input(self._machine.on_record, record)

    def _on_appended(self, token: Token, offset: int) -> None:
        self._input(self._machine.on_appended, token, offset)

    def _on_append_failed(self, token: Token, reason: str) -> None:
        self._input(self._machine.on_append_failed, token, reason)

    # Effects.

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(to, message)
                case Persist(record, token):
                    self._storage(effect).persist(self._encode(record), token)
                case Compact(records, token):
                    self._storage(effect).compact(tuple(map(self._encode, records)), token)
                case SetTimer(name, after):
                    self._set_timer(name, after)
                case CancelTimer(name):
                    self._cancel_timer(name)
                case Append():
                    self._feed.append(effect)
                case Subscribe(topic, partition, offset):
                    self._feed.subscribe(topic, partition, offset)
                case Deliver(item):
                    if self._deliver is not None:
                        self._deliver(item)
                case Reply(client, request, result):
                    self._reply(client, request, result)
                case Note(text):
                    logger.debug("%s: %s", self.node, text)
                case Halt(reason):
                    self._fail(HaltedError(f"node {self.node} halted: {reason}"))
                    return
                case _:
                    raise TypeError(f"{effect!r} is not an effect")

    def _send(self, to: NodeId, message: Message) -> None:
        if to == self.node:
            self._loop.call_soon(self._input, self._machine.on_message, to, message)
            return
        last, payload = self._sent
        if message is not last:  # a broadcast is encoded once
            payload = self._encode(message)
            if len(payload) > self._limits.frame:
                # Every peer would close the connection, again and again: better one clear end.
                raise LockstepError(
                    f"a {type(message).__name__} of {len(payload)} bytes exceeds {self._limits.frame}",
                    hint="the machine must cut it into parts, or Limits.frame be raised on all nodes",
                )
            self._sent = (message, payload)
        if not self._transport.send(to, payload):
            self.lost_sends += 1

    def _storage(self, effect: Effect) -> GroupCommit:
        if self._commit is None:
            raise UsageError(f"{type(self._machine).__name__} persists records, and its host has no folder")
        return self._commit

    def _reply(self, client: ClientId, request: int, result: Any) -> None:
        if client != self._client:
            response = self._encode(Response(request, self._encode(result)))
            if len(response) > self._limits.frame:
                logger.error("%s: a reply of %d bytes is too large to send", self.node, len(response))
            else:
                self._transport.reply(client, response)
        elif (reply := self._replies.get(request)) is not None and not reply.done():
            reply.set_result(result)

    # Starting and ending.

    def _recovered(self, record: bytes) -> Message:
        try:
            return self._record.decode(record)
        except msgspec.MsgspecError as error:
            raise CorruptHistoryError(
                f"{self._folder} holds a record that {type(self._machine).__name__} does not know: {error}",
                hint="it belongs to another protocol or to a newer version: name the right folder",
            ) from error

    def _doubt(self, error: BaseException) -> HaltedError:
        if isinstance(error, HaltedError):
            return error
        halted = HaltedError(
            f"node {self.node} halted: {getattr(error, 'message', None) or repr(error)}",
            hint=getattr(error, "hint", ""),
        )
        halted.__cause__ = error
        return halted

    def _release(self, error: Exception | None) -> None:
        self._transport.close()
        self._feed.close()
        for reply in list(self._replies.values()):
            if not reply.done():
                reply.set_exception(error or HaltedError(f"node {self.node} stopped"))


def _decoder(kind: type[Machine], field: str) -> "msgspec.msgpack.Decoder[Any]":
    """A strict decoder for what the machine declares; one that refuses everything if it declares nothing."""
    declared = getattr(kind, field)
    try:
        return msgspec.msgpack.Decoder(_Nothing if declared is None else declared)
    except TypeError as error:
        raise UsageError(
            f"{kind.__name__}.{field} cannot be decoded: {error}",
            hint="declare one Struct, or a union of Structs with tags",
        ) from error


class _Nothing(msgspec.Struct, frozen=True, tag="lockstep-nothing", forbid_unknown_fields=True):
    """Stands for a kind of message that the protocol does not have."""
