"""Leader election: one of the candidates leads, and the next one when it is gone."""

import asyncio

from lockstep.coordination.client import Client
from lockstep.coordination.errors import NoNode
from lockstep.coordination.recipes.queue import Place, number
from lockstep.coordination.states import State


class Election:
    """
    election = Election(client, "/election", b"site-1")
    await election.win()
    await publish(order, epoch=election.token)
    """

    def __init__(self, client: Client, path: str, name: bytes = b"") -> None:
        self._place = Place(client, path, name)
        self._won = False

    @property
    def token(self) -> int:
        """The fencing token of this leadership: larger for every later leader."""
        return self._place.token

    @property
    def is_leader(self) -> bool:
        return self._won and bool(self._place.node) and self._place.client.state is State.CONNECTED

    async def win(self, timeout: float | None = None) -> bool:
        """Wait until this candidate leads; false if `timeout` seconds were not enough (it still stands)."""
        try:
            async with asyncio.timeout(timeout):
                if not self._place.node:
                    await self._place.take()
                await self._place.wait_first()
        except TimeoutError:
            return False
        self._won = True
        return True

    async def resign(self) -> None:
        self._won = False
        await self._place.leave()

    async def candidates(self) -> list[bytes]:
        """The names of all that stand, the leader first."""
        client, path = self._place.client, self._place.path
        found: list[bytes] = []
        for name in sorted(await client.children(path), key=number):
            try:
                found.append((await client.get(f"{path}/{name}"))[0])
            except NoNode:
                continue  # it left meanwhile
        return found
