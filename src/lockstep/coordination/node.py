"""One server of the ensemble as a process: the ZAB machine, the service, the network, the disk, the clients.

It is a `Runner`: one input at a time, and crash-only. So a full disk makes a server step down instead of lie.

Pauses are what elections are made of: the garbage collector never walks the tree (new objects are looked at
once and then set aside), snapshots are written by a forked child, and fsync runs in a thread.
"""

import asyncio
import gc
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from lockstep.coordination import membership
from lockstep.coordination.checkpoints import Checkpoints
from lockstep.coordination.clients import Settings
from lockstep.coordination.config import NodeConfig
from lockstep.coordination.front import Front
from lockstep.coordination.journal import Journal
from lockstep.coordination.network import Network
from lockstep.coordination.phases import Phases
from lockstep.coordination.service import Service
from lockstep.coordination.snapshots import SnapshotStore
from lockstep.coordination.words import Words
from lockstep.coordination.zab.interface import (
    Command,
    Committed,
    Delivery,
    Dropped,
    Looking,
    Restore,
    SnapshotWanted,
    StoreSnapshot,
)
from lockstep.coordination.zab.messages import MESSAGE, Channel, channel, opens
from lockstep.coordination.zab.server import Server
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger
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
from lockstep.protocol.runner import Runner
from lockstep.protocol.storage import History

logger = get_logger(__name__)


class NodeEnded(LockstepError):
    """The server doubts itself and ended; start it again from its data folder. Exit code 3."""

    exit_code = 3


class Node(Runner):
    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        me = config.members[config.server]
        incarnation = _now_ms()
        self.machine = Server(config.server, sorted(config.members), config.zab, incarnation=incarnation)
        super().__init__(f"server {config.server}", self.machine.on_timer)
        self.service = Service(
            Settings(
                config.server,
                incarnation=incarnation,
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
        self.phases = Phases()
        self.words = Words(self)
        self.front = Front(self.service, self.words.answer, _now_ms)
        self.network = Network(
            config.server,
            {server: member.peer for server, member in config.members.items()},
            ensemble=membership.fingerprint(config.members, config.name),
            incarnation=incarnation,
            on_message=self._on_message,
            on_peer=self._on_peer,
            secret=config.secret,
            server_tls=config.tls.peers_accept,
            client_tls=config.tls.peers_dial,
        )
        self._listen = (me.peer, me.client)
        self.client_address = me.client
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = 0
        self.started = time.monotonic()

    async def start(self) -> None:
        self._prepare()
        config = self.config
        membership.claim(config.folder, config.server, config.members, config.name)
        self._checkpoints = Checkpoints(
            config,
            SnapshotStore(config.folder / "snapshots"),
            self.service,
            command=self._command,
            spawn=self._spawn,
            fail=self._fail,
        )
        history = await self._loop.run_in_executor(None, self._open_history, config.folder / "log")
        try:
            self._journal = Journal(
                history, persisted=self._on_persisted, fail=self._fail, pressure=self.service.press
            )
            await self.network.open(self._listen[0])
            self.client_address = Address(*await self.front.open(*self._listen[1], tls=config.tls.clients))
        except BaseException:
            self.network.close()
            history.close()
            raise
        self._commit = self._journal.commit
        self._running = True
        self._input(self.machine.on_start, tuple(self._journal.records))
        if self._running:
            self.network.start()
            gc.collect()
            gc.freeze()
            gc.disable()
            self._spawn(self._tick())

    # Inputs.

    def _on_message(self, peer: int, message: MESSAGE) -> None:
        self._input(self.machine.on_message, str(peer), message)

    def _on_peer(self, peer: int, kind: Channel, up: bool) -> None:
        self._input(self.machine.on_peer, f"{kind}:{peer}", up)

    def _on_persisted(self, token: Token) -> None:
        self._input(self.machine.on_persisted, token)

    def _command(self, command: Command) -> None:
        self._requests += 1
        self._input(self.machine.on_command, "service", self._requests, command)

    # Effects.

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(to, message)
                case Persist(record, token):
                    self._journal.persist(record, token)
                case Deliver(item):
                    self._deliver(item)
                case SetTimer(name, after):
                    self._set_timer(name, after)
                case CancelTimer(name):
                    self._cancel_timer(name)
                case Reply():
                    pass  # `Proposed` tells nothing that `Committed` does not; `NotServing` comes with `Looking`
                case Compact(records, token):
                    self._journal.replace(records, token)
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
            self._loop.call_soon(self._input, self.machine.on_message, to, message)
        else:
            self.network.send(peer, message, channel(message), opens=opens(message))

    def _deliver(self, item: Delivery) -> None:
        match item:
            case Committed(_, txns):
                self.service.on_delivery(item)
                self._checkpoints.on_committed(txns)
                return
            case Dropped(server):
                self.network.close_quorum(server)
            case Restore(_, reference):
                self.service.restore(self._checkpoints.store.load(reference))
                gc.freeze()
            case SnapshotWanted(token):
                self._checkpoints.give(token)
            case StoreSnapshot(token, zxid, blob):
                self._checkpoints.take(token, zxid, blob)
            case Looking():
                self.network.close_quorum()
                self.service.on_delivery(item)
            case _:
                self.service.on_delivery(item)
        self.phases.on_delivery(item)

    # The rest.

    def _open_history(self, folder: Path) -> History:
        return History(folder)

    def _wake(self) -> None:
        self._loop.call_soon(self.service.flush)

    async def _tick(self) -> None:
        pause = max(0.005, min(0.1, self.config.tick_ms / 10_000))
        collect_at = time.monotonic() + 1
        while self._running:
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

    def _doubt(self, error: BaseException) -> NodeEnded:
        message = getattr(error, "message", None) or repr(error)
        return NodeEnded(
            f"server {self.config.server} ended itself: {message}",
            hint=getattr(error, "hint", "") or "start it again: it goes on from its data folder",
        )

    def _release(self, error: Exception | None) -> None:
        self.network.close()
        self.front.close()
        for task in list(self._tasks):
            task.cancel()
        gc.enable()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
