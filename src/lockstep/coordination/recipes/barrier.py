"""Barriers: nobody passes until it is lifted; or until all are there, and again until all are done."""

import asyncio
from collections.abc import Callable

from lockstep.coordination.client import Client, WatchEvent
from lockstep.coordination.errors import ConnectionLoss, NodeExists, NoNode
from lockstep.coordination.recipes.queue import ensure


class Barrier:
    """One node: while it exists, `wait` waits."""

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path

    async def put(self) -> None:
        try:
            await self._client.create(self._path)
        except NodeExists:
            pass

    async def lift(self) -> None:
        try:
            await self._client.delete(self._path)
        except NoNode:
            pass

    async def wait(self) -> None:
        while True:
            gone = asyncio.Event()

            def heard(event: WatchEvent, gone: asyncio.Event = gone) -> None:
                gone.set()

            try:
                if await self._client.exists(self._path, watch=heard) is None:
                    return
            except ConnectionLoss:
                continue
            await self._client.until(gone)


class DoubleBarrier:
    """`enter` returns once `count` clients have entered, `leave` once all of them have left."""

    def __init__(self, client: Client, path: str, count: int, name: str) -> None:
        self._client = client
        self._path = path
        self._count = count
        self._node = f"{path}/{name}"

    async def enter(self) -> None:
        await ensure(self._client, self._path)
        while True:
            try:
                await self._client.create(self._node, ephemeral=True)
                break
            except NodeExists:
                break
            except ConnectionLoss:
                continue
        await self._wait(lambda names: len(names) >= self._count)

    async def leave(self) -> None:
        while True:
            try:
                await self._client.delete(self._node)
                break
            except NoNode:
                break
            except ConnectionLoss:
                continue
        await self._wait(lambda names: not names)

    async def _wait(self, is_done: Callable[[list[str]], bool]) -> None:
        while True:
            changed = asyncio.Event()

            def heard(event: WatchEvent, changed: asyncio.Event = changed) -> None:
                changed.set()

            try:
                if is_done(await self._client.children(self._path, watch=heard)):
                    return
            except ConnectionLoss:
                continue
            await self._client.until(changed)
