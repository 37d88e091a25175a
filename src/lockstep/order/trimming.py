"""Trimming of an order topic, and of the topics between stages, behind all sites (`trim.py` says how far).

Only a KaZoo leader that starts anew needs the sum of what was deleted, and that is the position itself. So things
happen in this order:

1. the position is written to the coordination service, where leaders look for it (`recall`);
2. then the order topic is trimmed to it, and the topics between stages that Lockstep owns.

A crash in between leaves records that nobody needs; they go with the next trimming.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from lockstep.coordination.client import Client
from lockstep.coordination.errors import BadVersion, NoNode
from lockstep.errors import LockstepError
from lockstep.log.interface import Log
from lockstep.order.merge import Position
from lockstep.order.records import Queue
from lockstep.order.trim import Prefix, SiteProgress, prefix

ROOT = "/lockstep/orders"

Remember = Callable[[Position], Awaitable[None]]


async def trim(
    log: Log,
    order_topic: str,
    shard: int,
    sites: Collection[SiteProgress],
    *,
    remember: Remember | None = None,
    queues: Sequence[Queue] = (),
    owned: Collection[str] = (),
) -> Prefix | None:
    """Delete what nobody needs; what that was. KaZoo needs `remember`.

    `queues` are the shard's inputs; those of `owned` topics (stage topics, with this shard as their only reader)
    are trimmed too.
    """
    found = prefix(sites)
    if found is None:
        return None
    if remember is not None:
        await remember(found.position)
    await _trim(log, order_topic, shard, found.position.order_offset)
    for (topic, partition), before in zip(queues, found.inputs, strict=False):
        if topic in owned:
            await _trim(log, topic, partition, before)
    return found


async def _trim(log: Log, topic: str, partition: int, before: int) -> None:
    if (await log.first_offsets(topic))[partition] < before:
        await log.trim(topic, partition, before)


def path_of(order_topic: str) -> str:
    """Where the coordination service keeps what concerns an order topic."""
    return f"{ROOT}/{order_topic}"


async def remember(client: Client, order_topic: str, shard: int, position: Position) -> None:
    """Keep the position for leaders that start after the trimming. It never goes back."""
    path = f"{path_of(order_topic)}/trimmed/{shard}"
    await client.ensure(path)
    while True:
        data, stat = await client.get(path)
        if data and _decode(data, path).order_offset >= position.order_offset:
            return
        try:
            await client.set(path, msgspec.json.encode(position), version=stat.version)
            return
        except BadVersion:
            continue


async def recall(client: Client, order_topic: str, shard: int) -> Position | None:
    """The position to which the shard's order topic may have been trimmed; None: it begins at its beginning."""
    path = f"{path_of(order_topic)}/trimmed/{shard}"
    try:
        data, _ = await client.get(path)
    except NoNode:
        return None
    return _decode(data, path) if data else None


def _decode(data: bytes, path: str) -> Position:
    try:
        return msgspec.json.decode(data, type=Position)
    except msgspec.MsgspecError as error:
        raise LockstepError(
            f"the coordination service holds no position at {path}: {error}",
            hint="somebody else wrote there: delete the node if the order topic was never trimmed",
        ) from error
