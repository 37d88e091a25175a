"""A lock that at most one client holds, first come first served."""

import asyncio
from types import TracebackType
from typing import Self

from lockstep.coordination.client import Client
from lockstep.coordination.recipes.queue import Place
from lockstep.coordination.states import State
from lockstep.errors import LockstepError


class LockLost(LockstepError):
    """The session that held the lock has expired: somebody else may hold it."""


class Lock:
    """
    async with Lock(client, "/locks/report") as lock:
        await storage.write(report, fence=lock.token)
    """

    def __init__(self, client: Client, path: str, data: bytes = b"") -> None:
        self._place = Place(client, path, data)

    @property
    def token(self) -> int:
        """The fencing token: larger for every later holder."""
        return self._place.token

    @property
    def is_held(self) -> bool:
        """False as soon as this client cannot be sure: see `State.SUSPENDED`."""
        return bool(self._place.node) and self._place.client.state is State.CONNECTED

    async def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock; false if `timeout` seconds were not enough."""
        try:
            async with asyncio.timeout(timeout):
                await self._place.take()
                await self._place.wait_first()
        except TimeoutError:
            await self._place.leave()
            return False
        except BaseException:
            await self._place.leave()
            raise
        return True

    async def release(self) -> None:
        await self._place.leave()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._place.client.state is State.EXPIRED:
            raise LockLost("the session expired while the lock was held", hint="undo, or rely on the token")
        await self.release()
