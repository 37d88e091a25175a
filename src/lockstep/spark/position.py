"""The position of an input as the Java source writes it into Spark's offset log, read from Python.

Versioned JSON, the same on every site: for each shard the place of the first record that was not read yet, and the
sealed batch that ends there (-1 at the origin and in real time). A place is an offset under order `partition`, and
a position of the merge where an order topic is followed. In real time, the place in a stage topic comes with what
was accepted before it, since all sites write there.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from lockstep.errors import LockstepError

VERSION = 1
NO_SEAL = -1


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a shard is in its order topic: `lockstep.order.merge.Position`, as Java writes it."""

    order_offset: int
    done: int
    inputs: tuple[int, ...]
    sn: int
    next: int
    ends: tuple[int, ...]
    epoch: int
    version: int
    skips: tuple[int, ...] = ()
    """Queue and offset in turn."""
    added: tuple[tuple[str, int], ...] = ()
    """The queues behind those that the run began with; left out where there are none."""


class InBandPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a shard is whose queues hold heartbeats among their events: `io.lockstep.order.InBandPlace`."""

    inputs: tuple[int, ...]
    beats: tuple[int, ...]
    next: int
    sn: int


class Deduplicated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in topics that all sites write to: `io.lockstep.order.Place.Deduplicated`."""

    at: int | Place | InBandPlace
    marks: tuple[dict[str, tuple[int, int]] | None, ...]
    """Of each queue, `shard/reducer` to the last that was accepted; None where a queue is not deduplicated."""


Somewhere = int | Place | InBandPlace | Deduplicated


class Position(msgspec.Struct, frozen=True):
    topic: str
    seal: int
    positions: dict[int, Somewhere]
    order: str = "partition"

    @property
    def upcoming(self) -> dict[int, int]:
        """For each shard the `_sn` of its next input: of two positions the later one has the larger numbers."""
        return {shard: upcoming(at) for shard, at in sorted(self.positions.items())}


def merge_place(at: Somewhere) -> int | Place | InBandPlace:
    """The place without what was accepted before it."""
    return at.at if isinstance(at, Deduplicated) else at


def upcoming(at: Somewhere) -> int:
    match merge_place(at):
        case Place(sn=sn, done=done):
            return sn + done
        case InBandPlace(sn=sn):
            return sn
        case int(offset):
            return offset


def encode(position: Position) -> str:
    shards = {str(shard): _fields(at) for shard, at in sorted(position.positions.items())}
    fields = {
        "version": VERSION,
        "order": position.order,
        "topic": position.topic,
        "seal": position.seal,
        "positions": shards,
    }
    return json.dumps(fields, separators=(",", ":"))


def decode(text: str) -> Position:
    """Raise `LockstepError` for a position of another version."""
    try:
        fields: Any = json.loads(text)
        version = fields["version"]
        if version == VERSION:
            return Position(
                topic=msgspec.convert(fields["topic"], str),
                seal=msgspec.convert(fields["seal"], int),
                positions={int(shard): _place(at) for shard, at in fields["positions"].items()},
                order=msgspec.convert(fields["order"], str),
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockstepError(
            f"this is no position: {text[:200]}", hint="the checkpoint is not Lockstep's"
        ) from error
    raise LockstepError(
        f"a position of version {version}; this Lockstep reads {VERSION}",
        hint="use the version that wrote the checkpoint, or start a new run",
    )


def committed(checkpoint: Path, *, back: int = 0) -> tuple[int, list[Position]] | None:
    """The newest batch that a checkpoint has committed, and where its inputs are; None before the first.

    `back`: so many batches before that one, or the oldest there is.
    """
    found = None
    for batch in reversed(batches(checkpoint)):
        if (one := _at(checkpoint, batch)) is not None:
            found = one
            if back == 0:
                break
            back -= 1
    return found


def batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches whose commits a checkpoint still knows, the newest last."""
    try:
        return sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    except FileNotFoundError:
        return []


def positions(checkpoint: Path) -> dict[int, list[Position]]:
    """Where the inputs were after each batch that is committed and still known."""
    found = (_at(checkpoint, batch) for batch in batches(checkpoint))
    return {one[0]: one[1] for one in found if one is not None}


def _at(checkpoint: Path, batch: int) -> tuple[int, list[Position]] | None:
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    except FileNotFoundError:  # purged, or not copied
        return None
    return batch, [decode(line) for line in lines[2:] if line.startswith("{")]


def _fields(at: Somewhere) -> Any:
    fields: Any = msgspec.to_builtins(at)
    place = merge_place(at)
    if isinstance(place, Place) and not place.added:
        del (fields["at"] if isinstance(at, Deduplicated) else fields)["added"]
    return fields


def _place(fields: Any) -> Somewhere:
    if isinstance(fields, dict) and "marks" in fields:
        marks = msgspec.convert(fields["marks"], tuple[dict[str, tuple[int, int]] | None, ...])
        return Deduplicated(_alone(fields["at"]), marks)
    return _alone(fields)


def _alone(fields: Any) -> int | Place | InBandPlace:
    in_band = isinstance(fields, dict) and "beats" in fields
    return msgspec.convert(fields, InBandPlace) if in_band else msgspec.convert(fields, int | Place)
