"""How far the beginning of an order topic may be deleted: the rule. `trimming.py` carries it out.

Never past the oldest checkpoint that any site may still go back to, and not at all while a site has none or
catches up. What lies before is needed by nobody: a site goes on from its position (`merge.Position`), a new site
from the copy of another's checkpoint, a generator from the latest cuts, a KaZoo leader from the position that the
topic was trimmed to: it says how far each queue is ordered, and the last epoch and version.
"""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from lockstep.order.merge import Position


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
