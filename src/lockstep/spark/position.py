"""The position of an input as the Java source writes it into Spark's offset log, read from Python.

Versioned JSON, the same on every site: for each shard the place of the first record that was not read yet, and the
sealed batch that ends there (-1 at the origin and in real time). A place is an offset under order `partition`, and
a position of the merge where an order topic is followed.
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


class Position(msgspec.Struct, frozen=True):
    topic: str
    seal: int
    positions: dict[int, int | Place]
    order: str = "partition"


def encode(position: Position) -> str:
    shards = {
        str(shard): at if isinstance(at, int) else msgspec.to_builtins(at)
        for shard, at in sorted(position.positions.items())
    }
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
            return msgspec.convert(
                {name: value for name, value in fields.items() if name != "version"}, Position, strict=False
            )
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise LockstepError(
            f"this is no position: {text[:200]}", hint="the checkpoint is not Lockstep's"
        ) from error
    raise LockstepError(
        f"a position of version {version}; this Lockstep reads {VERSION}",
        hint="use the version that wrote the checkpoint, or start a new run",
    )


def committed(checkpoint: Path) -> tuple[int, list[Position]] | None:
    """The newest batch that a checkpoint has committed, and where its inputs are; None before the first."""
    batches = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
    for batch in sorted(batches, reverse=True):
        try:
            lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:  # purged, or not copied
            continue
        return batch, [decode(line) for line in lines[2:] if line.startswith("{")]
    return None
