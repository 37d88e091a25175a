"""When a server writes a snapshot of its tree, and snapshots for servers that are too far behind.

Between two snapshots lie so many transactions or bytes of them. Not all servers write at once: each starts
counting a fraction of a span later than the one before it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.coordination.config import NodeConfig
from lockstep.coordination.service import Service
from lockstep.coordination.snapshots import SnapshotStore
from lockstep.coordination.zab.interface import Checkpoint, Command, SnapshotReady, SnapshotStored
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)


class Checkpoints:
    def __init__(
        self,
        config: NodeConfig,
        store: SnapshotStore,
        service: Service,
        *,
        command: Callable[[Command], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.store = store
        self._service = service
        self._command = command
        self._spawn = spawn
        self._fail = fail
        self._most = (config.snapshot_every, config.snapshot_bytes)
        rank = sorted(config.members).index(config.server) / len(config.members)
        self._transactions = -int(config.snapshot_every * rank)
        self._bytes = -int(config.snapshot_bytes * rank)
        self._is_saving = False

    def on_committed(self, txns: tuple[bytes, ...]) -> None:
        self._transactions += len(txns)
        self._bytes += sum(map(len, txns))
        is_due = self._transactions >= self._most[0] or self._bytes >= self._most[1]
        if is_due and not self._is_saving:
            self._is_saving = True
            self._transactions = self._bytes = 0
            self._spawn(self._save())

    def give(self, token: int) -> None:
        """The leader wants a snapshot for a follower."""
        self._spawn(self._give(token))

    def take(self, token: int, zxid: int, blob: bytes) -> None:
        """The leader has sent one."""
        self._spawn(self._take(token, zxid, blob))

    async def _save(self) -> None:
        try:
            zxid, reference = await self.store.save(self._service.tree)
        except LockstepError as error:
            logger.error("%s", error)  # the log still holds everything: go on and try again later
            return
        finally:
            self._is_saving = False
        self._command(Checkpoint(zxid, reference))
        self.store.purge(reference)

    async def _give(self, token: int) -> None:
        blob: bytes | None = None
        zxid = self._service.tree.last_zxid
        try:
            zxid, reference = await self.store.save(self._service.tree)
            blob = await asyncio.get_running_loop().run_in_executor(None, self.store.read, reference)
        except (LockstepError, OSError) as error:
            logger.error("cannot give a snapshot: %s", error)
        self._command(SnapshotReady(token, zxid, blob))

    async def _take(self, token: int, zxid: int, blob: bytes) -> None:
        try:
            reference = await asyncio.get_running_loop().run_in_executor(None, self.store.store, zxid, blob)
        except (LockstepError, OSError) as error:
            self._fail(error)
            return
        self._command(SnapshotStored(token, reference))
