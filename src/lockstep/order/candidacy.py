"""A candidacy: one process that stands for the leadership of an order, for as long as it lives.

It stands with an ephemeral node below the order's path in the coordination service, and dies with its connection
there (`close_with_connection`): a killed leader is missed within milliseconds, not after a session timeout. The
node's creation zxid is the fencing token, and the token is the epoch.

A leader whose connection is suspended goes on publishing: what it may publish is decided by claims in the order
topic, not by sessions, so a coordination service that is down stops nobody who leads. A leader whose node is gone
(expired, or deposed by another candidate) steps back and stands again, at the end of the queue.
"""

import asyncio
from collections.abc import Callable

from lockstep.coordination.client import Client, WatchEvent
from lockstep.coordination.errors import ConnectionLoss, NoNode
from lockstep.coordination.recipes.queue import Place, ensure, number
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

_RETRY_SECONDS = 0.1


class Candidacy:
    """`elected` is called with the epoch when this process comes to lead, `deposed` when that is over."""

    def __init__(
        self,
        servers: str,
        path: str,
        name: str,
        *,
        elected: Callable[[int], None],
        deposed: Callable[[], None],
        session: float = 2.0,
    ) -> None:
        self._servers = servers
        self._path = path
        self._name = name
        self._elected = elected
        self._deposed = deposed
        self._session = session
        self._client: Client | None = None
        self._place: Place | None = None
        self._warned = ""

    async def run(self) -> None:
        """Stand until cancelled. A coordination service that does not answer is asked again and again."""
        while True:
            client = Client(self._servers, timeout=self._session, close_with_connection=True)
            try:
                await client.start()
                self._client = client
                await ensure(client, self._path)
                while True:
                    await self._stand(client)
            except LockstepError as error:
                logger.warning("candidate %s starts anew: %s", self._name, error)
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                self._client = self._place = None
                self._deposed()
                await client.stop()

    async def depose(self, epoch: int) -> None:
        """The leader of `epoch` is silent: have the next candidate elected.

        A leader that was elected after that epoch has not been heard yet. It is warned first: only if it is still
        silent at the next complaint does it go.
        """
        client = self._client
        if client is None:
            return
        try:
            names = sorted(await client.children(self._path), key=number)
            if not names:
                return
            first = f"{self._path}/{names[0]}"
            stat = await client.exists(first)
            if stat is None or (self._place is not None and first == self._place.node):
                return
            if stat.czxid > epoch and first != self._warned:
                self._warned = first
                return
            logger.warning("candidate %s deposes the silent leader of epoch %d", self._name, stat.czxid)
            await client.delete(first)
        except (ConnectionLoss, NoNode):
            return  # who complains will complain again
        except LockstepError as error:
            logger.debug("cannot depose: %s", error)

    async def stands(self) -> bool:
        """Whether our node is still there, as the service itself says."""
        client, place = self._client, self._place
        if client is None or place is None or not place.node:
            return False
        try:
            await client.sync(self._path)
            return await client.exists(place.node) is not None
        except LockstepError:
            return False

    async def _stand(self, client: Client) -> None:
        """One candidacy: from taking a place in the queue until that place is gone."""
        place = self._place = Place(client, self._path, self._name.encode())
        await place.take()
        try:
            await place.wait_first()
        except NoNode:
            return
        self._elected(place.token)
        while True:
            gone = asyncio.Event()

            def heard(event: WatchEvent, gone: asyncio.Event = gone) -> None:
                gone.set()

            try:
                if await client.exists(place.node, watch=heard) is None:
                    break
                await client.until(gone)
            except ConnectionLoss:
                continue
        self._deposed()
