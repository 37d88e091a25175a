"""Copies of checkpoints, on folders made as Spark makes them (state format 2)."""

import json
import shutil
import uuid
from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.spark import checkpoints, position


class Checkpoint:
    """A checkpoint that a test writes to as Spark would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("metadata", '{"id":"of this site"}')
        self.write("state/0/_metadata/metadata", "v1")
        self.write("state/0/0/_metadata/schema", "v1")

    def write(self, name: str, text: str = "") -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def state(self, batch: int, kind: str = "changelog") -> str:
        one = str(uuid.uuid4())
        self.write(f"state/0/0/{batch + 1}_{one}.{kind}", f"state {batch}")
        return one

    def offsets(self, batch: int) -> None:
        at = position.Position("payments", batch, {0: batch * 100})
        self.write(f"offsets/{batch}", "v1\n{}\n" + position.encode(at))
        self.write(f"offsets/.{batch}.crc", "hadoop")

    def commit(self, batch: int, state: str) -> None:
        ids = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[state]]}}
        self.write(f"commits/{batch}", "v2\n" + json.dumps(ids))

    def batch(self, number: int) -> str:
        self.offsets(number)
        state = self.state(number)
        self.write(f"sources/0/marks/0-{number}", "{}")
        self.commit(number, state)
        return state


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(tmp_path / "site-1" / "checkpoint")
    for number in range(3):
        made.batch(number)
    return made


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "site-2").mkdir()
    return tmp_path / "site-2" / "checkpoint"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_copy_holds_what_is_committed_and_nothing_of_the_batch_that_runs(
    source: Checkpoint, target: Path
) -> None:
    source.offsets(3)  # micro-batch: written before the batch runs
    half = source.state(3)
    source.write("sources/0/marks/0-3", '{"half a')
    source.write("commits/.3.tmp", "v2")
    source.write("state/0/0/.5.changelog.tmp")
    copied = checkpoints.copy(source.path, target)
    assert (copied.batch, copied.positions[0].upcoming) == (2, {0: 200})
    assert position.committed(target) == (2, list(copied.positions))
    found = names(target)
    assert {f"offsets/{n}" for n in range(3)} == {name for name in found if name.startswith("offsets")}
    assert {f"sources/0/marks/0-{n}" for n in range(3)} == {name for name in found if "marks" in name}
    assert not [name for name in found if half in name or "tmp" in name or "/." in name]
    assert {"state/0/_metadata/metadata", "state/0/0/_metadata/schema"} <= found


def test_a_copy_is_a_query_of_its_own(source: Checkpoint, target: Path) -> None:
    checkpoints.copy(source.path, target)
    uuid.UUID(json.loads((target / "metadata").read_text())["id"])


def test_only_a_site_that_has_committed_nothing_takes_a_copy(source: Checkpoint, target: Path) -> None:
    own = Checkpoint(target)
    own.offsets(0)  # it died in its first batch
    copied = checkpoints.take(target, [source.path])
    assert copied is not None
    assert position.committed(target) == (2, list(copied.positions))
    source.batch(3)
    assert checkpoints.take(target, [source.path]) is None
    assert position.committed(target) == (2, list(copied.positions)), "its own one stays"


def test_the_copy_is_taken_of_the_site_that_is_furthest(
    source: Checkpoint, target: Path, tmp_path: Path
) -> None:
    ahead = Checkpoint(tmp_path / "site-3" / "checkpoint")
    for number in range(5):
        ahead.batch(number)
    copied = checkpoints.take(target, [source.path, ahead.path, tmp_path / "site-4" / "checkpoint"])
    assert copied is not None
    assert (copied.source, copied.batch) == (ahead.path, 4)


def test_without_any_checkpoint_a_site_begins_at_the_beginning(target: Path, tmp_path: Path) -> None:
    Checkpoint(tmp_path / "site-3" / "checkpoint")
    assert checkpoints.take(target, [tmp_path / "site-3" / "checkpoint"]) is None
    assert not target.exists()


def test_a_file_that_maintenance_removes_meanwhile_is_no_harm(
    source: Checkpoint, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark purges batch 0 after the copy has listed it."""
    copy_file = shutil.copyfile

    def purge(one: Path, other: Path) -> None:
        (source.path / "offsets" / "0").unlink(missing_ok=True)
        copy_file(one, other)

    monkeypatch.setattr(shutil, "copyfile", purge)
    copied = checkpoints.copy(source.path, target)
    assert copied.batch == 2
    assert "offsets/0" not in names(target)


def test_snapshot_files_are_listed_after_the_snapshots_that_need_them(
    source: Checkpoint, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes the SST and then the snapshot, in the middle of the copy."""
    (source.path / "state/0/0/SSTs").mkdir()
    snapshot = source.path / "state" / "0" / "0" / f"3_{uuid.uuid4()}.zip"
    walk = checkpoints._files

    def slow(folder: Path):  # type: ignore[no-untyped-def]
        files = sorted(walk(folder), key=lambda file: "SSTs" not in file.parts)  # SSTs first
        if not snapshot.exists():
            source.write("state/0/0/SSTs/1.sst")
            snapshot.write_text("needs 1.sst")
            files.append(snapshot.relative_to(folder))
        return files

    monkeypatch.setattr(checkpoints, "_files", slow)
    checkpoints.copy(source.path, target)
    assert {str(snapshot.relative_to(source.path)), "state/0/0/SSTs/1.sst"} <= names(target)


def test_it_is_noted_before_it_counts(source: Checkpoint, target: Path) -> None:
    """Killed in between, the site copies again; the other way round it would seem to have lost outputs."""
    noted = []
    checkpoints.take(target, [source.path], lambda copied: noted.append((copied.batch, target.exists())))
    assert noted == [(2, False)]
    assert target.exists()


@pytest.mark.parametrize("lacks", ["state/0/0/3_*", "sources/0/marks/0-2", "offsets/1"])
def test_a_checkpoint_that_lacks_what_its_commit_names_is_not_taken(
    source: Checkpoint, target: Path, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_PAUSE_SECONDS", 0.0)
    (gone,) = source.path.glob(lacks)
    gone.unlink()
    with pytest.raises(LockstepError, match="missing"):
        checkpoints.take(target, [source.path])
    assert not target.exists()
    assert not list(target.parent.glob("*")), "nothing is left behind"


def test_another_site_is_asked_when_one_has_a_damaged_checkpoint(
    source: Checkpoint, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_PAUSE_SECONDS", 0.0)
    damaged = Checkpoint(tmp_path / "site-3" / "checkpoint")
    for number in range(5):
        damaged.batch(number)
    shutil.rmtree(damaged.path / "state")
    copied = checkpoints.take(target, [source.path, damaged.path])
    assert copied is not None
    assert copied.source == source.path
