"""Copy the checkpoint of a site that runs: a site without one goes on from there, not from the beginning.

A checkpoint may be copied while Spark writes to it, because with state format 2 no file is written twice: the
commit log names the state of each batch by ids of its own. The copy is made in this order:

1. The newest batch of the commit log is the one to copy. Whatever belongs to a later one is left out, and so is
   what is still being written (`*.tmp`, hidden files).
2. Logs, state and marks are copied; the files that RocksDB's snapshots refer to (`SSTs`) are listed after the
   snapshots, since Spark writes them before.
3. It is complete if everything that the commit names is there. If not, or if Spark purged a file meanwhile, the
   copy is made anew: the newest batch is another one by then.
4. The copy takes the place of the site's own checkpoint in one rename. Killed before that, it leaves nothing that
   counts.

The query id is new: Spark takes it from the checkpoint alone and wants it unique within an application, so
sharing it would do no harm, but logs and metrics of two sites should not look like one.

Each stage is copied for itself, from whichever site is ahead. Any mix is fine: a stage's state is a function of
its own input up to its own position, and what it writes again is dropped by whoever reads. Nothing is left out
either: a batch is committed after its outputs are in the log, so they stand there before anything that the copy
will write.

Local file systems only.
"""

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger
from lockstep.spark.position import Position, committed

logger = get_logger(__name__)

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05
_STATE_FILE = re.compile(
    r"(?P<version>\d+)_(?P<id>[0-9a-fA-F-]{36})(_[0-9a-fA-F-]{36})?\.(changelog|zip)(\.crc)?"
)
_SNAPSHOT_FILES = "SSTs"


@dataclass(frozen=True)
class Copied:
    """What a copy holds."""

    source: Path
    batch: int
    positions: tuple[Position, ...]


Note = Callable[[Copied], None]


class _Incomplete(Exception):
    """Something that the commit names is not there."""


def take(checkpoint: Path, others: Sequence[Path], note: Note = lambda copied: None) -> Copied | None:
    """Give a site that has committed nothing another one's checkpoint; None if it needs none or none has any.

    `note` is told what was copied before it counts.
    """
    if committed(checkpoint) is not None:
        return None
    best = _furthest_first(others)
    for number, source in enumerate(best):
        try:
            return copy(source, checkpoint, note)
        except LockstepError as error:
            if number == len(best) - 1:
                raise
            logger.warning("%s", error)
    return None


def copy(source: Path, target: Path, note: Note = lambda copied: None) -> Copied:
    """Copy what `source` has committed to `target`, which must hold nothing that counts."""
    partial = target.with_name(f".{target.name}.copy")
    trouble: Exception | None = None
    for _ in range(_ATTEMPTS):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            copied = _copy(source, partial)
        except (FileNotFoundError, _Incomplete) as error:
            trouble = error
            time.sleep(_PAUSE_SECONDS)
            continue
        note(copied)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        return copied
    shutil.rmtree(partial, ignore_errors=True)
    raise LockstepError(
        f"the checkpoint {source} cannot be copied: {trouble}",
        hint="is it whole? the site will be started again, and tries again",
    )


def _furthest_first(checkpoints: Iterable[Path]) -> list[Path]:
    reached = []
    for checkpoint in checkpoints:
        found = committed(checkpoint)
        if found is not None:
            reached.append((sum(n for one in found[1] for n in one.upcoming.values()), checkpoint))
    return [checkpoint for _, checkpoint in sorted(reached, key=lambda one: one[0], reverse=True)]


def _copy(source: Path, partial: Path) -> Copied:
    found = committed(source)
    if found is None:
        raise _Incomplete("it has no committed batch")
    batch, positions = found
    for snapshot_files in (False, True):  # the second listing comes after the copies of what refers to it
        for file in _files(source):
            if _is_snapshot_file(file) is snapshot_files and _belongs(file, batch):
                _copy_file(source, partial, file)
    _check(partial, batch)
    (partial / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    return Copied(source, batch, tuple(positions))


def _files(folder: Path) -> Iterator[Path]:
    """The finished files below a folder, relative to it. Hidden ones are temporary, or checksums of Hadoop's."""
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and not name.endswith(".tmp"):
                yield (Path(at) / name).relative_to(folder)


def _is_snapshot_file(file: Path) -> bool:
    return file.parts[0] == "state" and _SNAPSHOT_FILES in file.parts


def _belongs(file: Path, batch: int) -> bool:
    """Whether a file is of this batch or an earlier one, or of no batch at all."""
    match file.parts:
        case ("metadata",):
            return False
        case ("offsets" | "commits", name):
            return name.isdigit() and int(name) <= batch
        case ("sources", _, "marks", name):
            seal = name.rpartition("-")[2]
            return seal.isdigit() and int(seal) <= batch
        case ("state", *_, name) if named := _STATE_FILE.fullmatch(name):
            return int(named["version"]) <= batch + 1  # batch n makes version n + 1
    return True


def _copy_file(source: Path, partial: Path, file: Path) -> None:
    target = partial / file
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / file, target)


def _check(copied: Path, batch: int) -> None:
    """Raise unless everything that the commit of the batch names is there."""
    try:
        commit = json.loads((copied / "commits" / str(batch)).read_text().partition("\n")[2] or "{}")
    except ValueError as error:
        raise _Incomplete(f"commits/{batch} is no commit: {error}") from error
    for needed in (batch, batch - 1):  # Spark asks for the offsets of both
        if needed >= 0 and not (copied / "offsets" / str(needed)).is_file():
            raise _Incomplete(f"offsets/{needed} is missing")
    for operator, partitions in (commit.get("stateUniqueIds") or {}).items():
        for partition, ids in enumerate(partitions):
            there = {
                named["id"]
                for path in (copied / "state" / operator / str(partition)).rglob("*")
                if (named := _STATE_FILE.fullmatch(path.name))
            }
            if missing := [one for one in ids if one and one not in there]:
                raise _Incomplete(f"state {missing[0]} of state/{operator}/{partition} is missing")
    for marks in copied.glob("sources/*/marks"):
        names = {path.name for path in marks.iterdir()}
        shards = {name.rpartition("-")[0] for name in names}
        if missing := sorted(f"{shard}-{batch}" for shard in shards if f"{shard}-{batch}" not in names):
            raise _Incomplete(f"{marks.relative_to(copied)}/{missing[0]} is missing")
