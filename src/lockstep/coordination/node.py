"""One server of the ensemble as a process: the ZAB machine, the service, the network, the disk, the clients.

The node gives the machine one input at a time and starts the effects of each before the next, as
`protocol.machine` promises. It is crash-only: a machine that halts, an error inside it, or a disk that does
not keep records ends the node at once, and whoever supervises it starts it again from what is durable. So a
full disk makes a server step down instead of lie.

Pauses are what elections are made of: the garbage collector never walks the tree (new objects are looked at
once and then set aside), snapshots are written by a forked child, and fsync runs in a thread.
"""

import asyncio
import gc
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from lockstep.coordination import membership
from lockstep.coordination.clients import Limits, Settings
from lockstep.coordination.front import Front
from lockstep.coordination.membership import Member
from lockstep.coordination.network import Network
from lockstep.coordination.service import Service
from lockstep.coordination.snapshots import SnapshotStore
from lockstep.coordination.words import Words
from lockstep.coordination.zab.interface import (
    Checkpoint,
    Command,
    Committed,
    Dropped,
    Looking,
    Restore,
    SnapshotReady,
    SnapshotStored,
    SnapshotWanted,
    StoreSnapshot,
)
from lockstep.coordination.zab.messages import MESSAGE, Channel, channel, opens
from lockstep.coordination.zab.records import RECORD, Checkpointed, Logged, Truncated
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import Settings as ZabSettings
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger
from lockstep.protocol.commit import GroupCommit
from lockstep.protocol.frames import Address
from lockstep.protocol.machine import (
    CancelTimer,
    Compact,
    Deliver,
    Effects,
    Halt,
    Note,
    Persist,
    Reply,
    Send,
    SetTimer,
    Token,
)
from lockstep.protocol.storage import CorruptHistoryError, History

logger = get_logger(__name__)

_COMPACTED: Final = "node:compacted"
_record_decoder: "msgspec.msgpack.Decoder[RECORD]" = msgspec.msgpack.Decoder(RECORD)


class Tls(Struct, frozen=True):
    """Contexts for both sides; None leaves a channel in the clear."""

    clients: ssl.SSLContext | None = None
    peers_accept: ssl.SSLContext | None = None
    peers_dial: ssl.SSLContext | None = None


class NodeConfig(Struct, frozen=True):
    server: int
    members: Mapping[int, Member]
    folder: Path
    name: str = ""
    tick_ms: int = 2000
    zab: ZabSettings = ZabSettings()
    limits: Limits = Limits()
    secret: bytes = b""
    super_digest: str | None = None
    enforce_quota: bool = False
    snapshot_every: int = 100_000
    snapshot_bytes: int = 128 << 20
    """A snapshot is due after so many transactions, or so many bytes of them."""
    tls: Tls = Tls()


class NodeEnded(LockstepError):
    """The server doubts itself and ended; start it again from its data folder. Exit code 3."""

    exit_code = 3


class Node:
    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        me = config.members[config.server]
        self._encode = msgspec.msgpack.Encoder().encode
        self._incarnation = _now_ms()
        self._machine = Server(
            config.server, sorted(config.members), config.zab, incarnation=self._incarnation
        )
        self.service = Service(
            Settings(
                config.server,
                incarnation=self._incarnation,
                tick_ms=config.tick_ms,
                grace_ms=5 * config.tick_ms,
                enforce_quota=config.enforce_quota,
                super_digest=config.super_digest,
                config_text=membership.config_text(config.members),
                limits=config.limits,
            ),
            command=self._command,
            wake=self._wake,
            now_ms=_now_ms,
            steady_ms=_steady_ms,
        )
        self.words = Words(self)
        self.front = Front(self.service, self.words.answer, _now_ms)
        self.network = Network(
            config.server,
            {server: member.peer for server, member in config.members.items()},
            ensemble=membership.fingerprint(config.members, config.name),
            incarnation=self._incarnation,
            on_message=self._on_message,
            on_peer=self._on_peer,
            secret=config.secret,
            server_tls=config.tls.peers_accept,
            client_tls=config.tls.peers_dial,
        )
        self._listen = (me.peer, me.client)
        self.client_address = me.client
        self._retained: list[RECORD] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._checkpoints: dict[Token, Checkpointed] = {}
        # Not all servers at once: each starts counting a fraction of a span later than the one before it.
        rank = sorted(config.members).index(config.server) / len(config.members)
        self._since_snapshot = -int(config.snapshot_every * rank)
        self._bytes_since_snapshot = -int(config.snapshot_bytes * rank)
        self._is_saving = False
        self._is_running = False
        self._is_stopped = False
        self._requests = 0
        self._commit: GroupCommit | None = None
        self.started = time.monotonic()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        config = self.config
        membership.claim(config.folder, config.server, config.members, config.name)
        self.snapshots = SnapshotStore(config.folder / "snapshots")
        history = await self._loop.run_in_executor(None, History, config.folder / "log")
        try:
            self._retained = [_recovered(record, config.folder) for record in history.recovered]
            history.recovered.clear()
            await self.network.open(self._listen[0])
            self.client_address = Address(*await self.front.open(*self._listen[1], tls=config.tls.clients))
        except BaseException:
            self.network.close()
            history.close()
            raise
        self._commit = GroupCommit(
            history, confirm=self._on_persisted, fail=self._fail, pressure=self.service.press
        )
        self._is_running = True
        self._input(self._machine.on_start, tuple(self._retained))
        if self._is_running:
            self.network.start()
            gc.collect()
            gc.freeze()
            gc.disable()
            self._spawn(self._tick())

    async def ended(self) -> None:
        """Wait until the node ends: returns after `stop`, raises `NodeEnded` if it ended itself."""
        await asyncio.shield(self._ended)

    def end(self) -> None:
        self._end(None)

    async def stop(self) -> None:
        self._end(None)
        if self._commit is not None:
            await self._commit.close()

    # Inputs.

    def _input(self, handler: Callable[..., Effects], *arguments: Any) -> None:
        if not self._is_running:
            return
        try:
            self._perform(handler(*arguments))
        except Exception as error:
            logger.exception("server %d: the machine failed", self.config.server)
            self._fail(error)

    def _on_message(self, peer: int, message: MESSAGE) -> None:
        self._input(self._machine.on_message, str(peer), message)

    def _on_peer(self, peer: int, kind: Channel, up: bool) -> None:
        self._input(self._machine.on_peer, f"{kind}:{peer}", up)

    def _on_timer(self, name: str, due: float) -> None:
        early = due - time.monotonic()
        if early > 0:  # the loop's clock is coarser than the machine's deadlines
            self._timers[name] = self._loop.call_later(max(early, 0.001), self._on_timer, name, due)
            return
        del self._timers[name]
        self._input(self._machine.on_timer, name)

    def _on_persisted(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token == _COMPACTED:
                continue
            self._input(self._machine.on_persisted, token)
            checkpoint = self._checkpoints.pop(token, None)
            if checkpoint is not None and self._is_running:
                self._compact(checkpoint)

    def _command(self, command: Command) -> None:
        self._requests += 1
        self._input(self._machine.on_command, "service", self._requests, command)

    # Effects.

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(to, message)
                case Persist(record, token):
                    self._persist(record, token)
                case Deliver(item):
                    self._deliver(item)
                case SetTimer(name, after):
                    if (old := self._timers.get(name)) is not None:
                        old.cancel()
                    due = time.monotonic() + after
                    self._timers[name] = self._loop.call_later(after, self._on_timer, name, due)
                case CancelTimer(name):
                    if (timer := self._timers.pop(name, None)) is not None:
                        timer.cancel()
                case Reply():
                    pass  # `Proposed` tells nothing that `Committed` does not; `NotServing` comes with `Looking`
                case Compact(records, token):
                    assert self._commit is not None
                    self._retained = list(records)
                    self._commit.compact(tuple(map(self._encode, records)), token)
                case Note(text):
                    logger.debug("server %d: %s", self.config.server, text)
                case Halt(reason):
                    self._fail(LockstepError(reason))
                    return
                case _:
                    raise TypeError(f"{effect!r} is not an effect of this machine")

    def _send(self, to: str, message: MESSAGE) -> None:
        peer = int(to)
        if peer == self.config.server:
            self._loop.call_soon(self._input, self._machine.on_message, to, message)
        else:
            self.network.send(peer, message, channel(message), opens=opens(message))

    def _persist(self, record: RECORD, token: Token) -> None:
        assert self._commit is not None
        match record:
            case Truncated(zxid):
                self._retained = [kept for part in self._retained if (kept := _cut(part, zxid)) is not None]
            case Checkpointed():
                self._checkpoints[token] = record
        self._retained.append(record)
        self._commit.persist(self._encode(record), token)

    def _compact(self, checkpoint: Checkpointed) -> None:
        """Drop what the checkpoint made superfluous (`zab.interface`, rule 13)."""
        assert self._commit is not None
        at = next((i for i, record in enumerate(self._retained) if record is checkpoint), -1)
        if at < 0:
            return  # the machine has replaced the whole history meanwhile
        beyond = [r for r in self._retained[:at] if isinstance(r, Logged) and _end(r) > checkpoint.zxid]
        self._retained = beyond + self._retained[at:]
        self._commit.compact(tuple(map(self._encode, self._retained)), _COMPACTED)

    def _deliver(self, item: Any) -> None:
        match item:
            case Dropped(server):
                self.network.close_quorum(server)
            case Restore(_, reference):
                self.service.restore(self.snapshots.load(reference))
                gc.freeze()
            case SnapshotWanted(token):
                self._spawn(self._give_snapshot(token))
            case StoreSnapshot(token, zxid, blob):
                self._spawn(self._take_snapshot(token, zxid, blob))
            case Looking():
                self.network.close_quorum()
                self.service.on_delivery(item)
            case Committed(_, txns):
                self.service.on_delivery(item)
                self._since_snapshot += len(txns)
                self._bytes_since_snapshot += sum(map(len, txns))
                if not self._is_saving and (
                    self._since_snapshot >= self.config.snapshot_every
                    or self._bytes_since_snapshot >= self.config.snapshot_bytes
                ):
                    self._is_saving = True
                    self._since_snapshot = self._bytes_since_snapshot = 0
                    self._spawn(self._checkpoint())
            case _:
                self.service.on_delivery(item)

    # Snapshots.

    async def _checkpoint(self) -> None:
        try:
            zxid, reference = await self.snapshots.save(self.service.tree)
        except LockstepError as error:
            logger.error("%s", error)  # the log still holds everything: go on and try again later
            return
        finally:
            self._is_saving = False
        self._command(Checkpoint(zxid, reference))
        self.snapshots.purge(reference)

    async def _give_snapshot(self, token: int) -> None:
        blob: bytes | None = None
        zxid = self.service.tree.last_zxid
        try:
            zxid, reference = await self.snapshots.save(self.service.tree)
            blob = await self._loop.run_in_executor(None, self.snapshots.read, reference)
        except (LockstepError, OSError) as error:
            logger.error("cannot give a snapshot: %s", error)
        self._command(SnapshotReady(token, zxid, blob))

    async def _take_snapshot(self, token: int, zxid: int, blob: bytes) -> None:
        try:
            reference = await self._loop.run_in_executor(None, self.snapshots.store, zxid, blob)
        except (LockstepError, OSError) as error:
            self._fail(error)
            return
        self._command(SnapshotStored(token, reference))

    # The rest.

    def _wake(self) -> None:
        self._loop.call_soon(self.service.flush)

    async def _tick(self) -> None:
        pause = max(0.005, min(0.1, self.config.tick_ms / 10_000))
        collect_at = time.monotonic() + 1
        while self._is_running:
            await asyncio.sleep(pause)
            self.service.on_tick()
            if time.monotonic() > collect_at:
                gc.collect(0)
                gc.freeze()
                collect_at = time.monotonic() + 1

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("server %d failed", self.config.server, exc_info=error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._is_running:
            message = getattr(error, "message", None) or repr(error)
            ended = NodeEnded(
                f"server {self.config.server} ended itself: {message}",
                hint=getattr(error, "hint", "") or "start it again: it goes on from its data folder",
            )
            logger.error("%s", ended)
            self._end(ended)

    def _end(self, error: NodeEnded | None) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        self._is_running = False
        self.network.close()
        self.front.close()
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        gc.enable()
        if error is not None:
            if self._commit is not None:
                self._commit.abandon()
            self._ended.set_exception(error)
        elif not self._ended.done():
            self._ended.set_result(None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _end(record: Logged) -> int:
    return record.zxid + len(record.txns) - 1


def _cut(record: RECORD, zxid: int) -> RECORD | None:
    """What is left of a record when every transaction after `zxid` is void."""
    if not isinstance(record, Logged) or _end(record) <= zxid:
        return record
    if record.zxid > zxid:
        return None
    return Logged(record.zxid, record.txns[: zxid - record.zxid + 1])


def _recovered(record: bytes, folder: Path) -> RECORD:
    try:
        return _record_decoder.decode(record)
    except msgspec.MsgspecError as error:
        raise CorruptHistoryError(
            f"{folder} holds a record that this version does not know: {error}",
            hint="it was written by a newer version, or is not a data folder of a server",
        ) from error
