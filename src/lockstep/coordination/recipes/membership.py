"""Who is there: each member an ephemeral node, and everybody told of each change."""

import asyncio
from collections.abc import Callable

from lockstep.coordination.client import Client, WatchEvent
from lockstep.coordination.errors import ConnectionLoss, NodeExists, NoNode
from lockstep.coordination.recipes.queue import ensure
from lockstep.errors import LockstepError


class Membership:
    """
    group = Membership(client, "/sites", on_change=print)
    await group.join("site-1", b"127.0.0.1:7000")

    Start the client with `close_with_connection=True` to be missed at once when this process dies.
    """

    def __init__(
        self, client: Client, path: str, *, on_change: Callable[[frozenset[str]], None] | None = None
    ) -> None:
        self._client = client
        self._path = path
        self._on_change = on_change
        self.name = ""
        self.token = 0
        """The fencing token of this membership: larger for every later member under any name."""
        self._reading: asyncio.Task[None] | None = None

    async def join(self, name: str, data: bytes = b"") -> None:
        """Become a member; the name of another living session is refused."""
        await ensure(self._client, self._path)
        node = f"{self._path}/{name}"
        while True:
            try:
                _, stat = await self._client.create_and_stat(node, data, ephemeral=True)
                break
            except ConnectionLoss:
                continue
            except NodeExists:
                found = await self._client.exists(node)
                if found is None:
                    continue
                if found.ephemeral_owner != self._client.session:
                    raise LockstepError(
                        f"{name} is a member already", hint="choose another name, or wait until it is gone"
                    ) from None
                stat = found
                break
        self.name, self.token = name, stat.czxid

    async def leave(self) -> None:
        if self.name:
            try:
                await self._client.delete(f"{self._path}/{self.name}")
            except NoNode:
                pass
            self.name = ""

    async def members(self) -> frozenset[str]:
        return frozenset(await self._client.children(self._path))

    async def data(self, name: str) -> bytes:
        return (await self._client.get(f"{self._path}/{name}"))[0]

    async def follow(self) -> frozenset[str]:
        """From now on `on_change` is told of every change; returns who is there now."""
        await ensure(self._client, self._path)
        await self._client.add_watch(self._path, self._heard)
        return await self.members()

    def _heard(self, event: WatchEvent) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while True:
            try:
                members = await self.members()
                break
            except ConnectionLoss:
                continue
            except NoNode:
                members = frozenset()
                break
        if self._on_change is not None:
            self._on_change(members)
