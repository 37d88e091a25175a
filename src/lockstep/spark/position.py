"""The position of an input as the Java source writes it into Spark's offset log, read from Python.

Versioned JSON, the same on every site: for each shard the offset of the first record that was not read yet, and
the sealed batch that ends there (-1 at the origin and in real time).
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from lockstep.errors import LockstepError

VERSION = 1
ORDER = "partition"
NO_SEAL = -1


class Position(msgspec.Struct, frozen=True):
    topic: str
    seal: int
    positions: dict[int, int]


def encode(position: Position) -> str:
    shards = {str(shard): at for shard, at in sorted(position.positions.items())}
    fields = {
        "version": VERSION,
        "order": ORDER,
        "topic": position.topic,
        "seal": position.seal,
        "positions": shards,
    }
    return json.dumps(fields, separators=(",", ":"))


def decode(text: str) -> Position:
    """Raise `LockstepError` for a position of another version or order."""
    try:
        fields: Any = json.loads(text)
        version, order = fields["version"], fields["order"]
    except (ValueError, KeyError, TypeError) as error:
        raise LockstepError(
            f"this is no position: {text[:200]}", hint="the checkpoint is not Lockstep's"
        ) from error
    if version != VERSION or order != ORDER:
        raise LockstepError(
            f"a position of version {version} and order {order}; this Lockstep reads {VERSION} and {ORDER}",
            hint="use the version that wrote the checkpoint, or start a new run",
        )
    positions = {int(shard): int(at) for shard, at in fields["positions"].items()}
    return Position(str(fields["topic"]), int(fields["seal"]), positions)


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
