"""How far the beginning of an order topic may be deleted, and its deletion.

The rule: never past the oldest checkpoint that any site may still go back to, and not at all while a site has none
or catches up. What lies before is needed by nobody: a site goes on from its position (`merge.Position`), a new
site from the copy of another's checkpoint, a generator from the latest cuts.

Only a KaZoo leader that starts anew needs the sum of what was deleted: how far each queue is ordered, and the
last epoch and version. That is the position itself. So things happen in this order:

1. the position is written to the coordination service, where leaders look for it (`recall`);
2. then the order topic is trimmed to it, and the topics between stages that Lockstep owns.

A crash in between leaves records that nobody needs; they go with the next trimming.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from lockstep.coordination.client import Client
from lockstep.coordination.errors import BadVersion, NoNode
from lockstep.errors import LockstepError
from lockstep.log.interface import Log
from lockstep.order.inputs import Queue
from lockstep.order.merge import Position

ROOT = "/lockstep/orders"


@dataclass(frozen=True)
class SiteProgress:
    """One site of a shard: `oldest` is the oldest checkpoint it may go back to, None if it has none yet."""

    site: str
    oldest: Position | None
    catching_up: bool = False


@dataclass(frozen=True)
class Prefix:
    """What nobody needs any more: order records below the position's offset, inputs below `inputs`."""

    position: Position
    inputs: tuple[int, ...]


def prefix(sites: Collection[SiteProgress]) -> Prefix | None:
    """What may be deleted, given the progress of *all* sites of a shard; None: nothing now."""
    positions: list[Position] = []
    for one in sites:
        if one.oldest is None or one.catching_up:
            return None
        positions.append(one.oldest)
    if not positions:
        return None
    # Everything in a position but `done` is as it was before the record at its order offset, so of two positions
    # the one with the lower offset is behind in every queue.
    oldest = min(positions, key=lambda position: position.order_offset)
    return Prefix(msgspec.structs.replace(oldest, done=0), oldest.inputs)


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
