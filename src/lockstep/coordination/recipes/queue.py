"""A place in a queue: an ephemeral sequential node, and waiting for those before it.

Creating the node is the one step that must not be repeated blindly: if the connection breaks before the answer, or
whoever waits for it gives up, the node may be there. Its name holds a random mark, so that it is found again: by
the next attempt, which would else wait for its own forerunner, or by whoever leaves.
"""

import asyncio
import secrets

from lockstep.coordination.client import Client, WatchEvent
from lockstep.coordination.errors import ClientClosed, ConnectionLoss, NodeExists, NoNode, SessionExpired


class Place:
    """This client's place below `path`. `token` is its fencing token once it is taken."""

    def __init__(self, client: Client, path: str, data: bytes = b"") -> None:
        self.client = client
        self.path = path
        self.data = data
        self.node = ""
        self.token = 0
        self._mark = ""
        """Of an attempt whose end is not known."""

    async def take(self) -> None:
        """Stand at the end of the queue. Safe to call again after `ConnectionLoss`, and after it was cancelled."""
        await ensure(self.client, self.path)
        if self._mark:
            self.node, self.token = await self._find(self._mark)
        while not self.node:
            self._mark = self._mark or secrets.token_hex(8)
            try:
                self.node, stat = await self.client.create_and_stat(
                    f"{self.path}/{self._mark}-", self.data, ephemeral=True, sequential=True
                )
                self.token = stat.czxid
            except ConnectionLoss:
                self.node, self.token = await self._find(self._mark)
        self._mark = ""

    async def wait_first(self) -> None:
        """Wait until nobody stands before us. One watch, on the one before us: no herd."""
        while True:
            before = await self._before()
            if before is None:
                return
            gone = asyncio.Event()

            def heard(event: WatchEvent, gone: asyncio.Event = gone) -> None:
                gone.set()

            try:
                if await self.client.exists(before, watch=heard) is None:
                    continue
                await self.client.until(gone)
            except ConnectionLoss:
                continue

    async def leave(self) -> None:
        """Give the place up. On return nobody waits for us any more."""
        node, mark = self.node, self._mark
        self.node = self._mark = ""
        try:
            if mark:
                node, _ = await self._find(mark)
            await self._delete(node)
        except (SessionExpired, ClientClosed):
            return  # the node goes, or is gone, with the session

    async def _before(self) -> str | None:
        while True:
            try:
                names = await self.client.children(self.path)
                break
            except ConnectionLoss:
                continue
        mine = self.node.rpartition("/")[2]
        if mine not in names:
            raise NoNode(f"our place {self.node} is gone", hint="the session has expired: start a new client")
        earlier = [name for name in names if number(name) < number(mine)]
        return f"{self.path}/{max(earlier, key=number)}" if earlier else None

    async def _find(self, mark: str) -> tuple[str, int]:
        """The node with this mark and its token; `""` and 0 if there is none."""
        while True:
            try:
                await self.client.sync(self.path)  # what was under way is decided, and is here
                for name in await self.client.children(self.path):
                    if name.startswith(mark):
                        node = f"{self.path}/{name}"
                        stat = await self.client.exists(node)
                        return (node, stat.czxid) if stat is not None else ("", 0)
                return "", 0
            except ConnectionLoss:
                continue

    async def _delete(self, node: str) -> None:
        while node:
            try:
                await self.client.delete(node)
                return
            except NoNode:
                return
            except ConnectionLoss:
                continue


def number(name: str) -> int:
    """The sequence number at the end of a node's name."""
    return int(name[-10:])


async def ensure(client: Client, path: str) -> None:
    while True:
        try:
            await client.ensure(path)
            return
        except (ConnectionLoss, NodeExists):
            continue
