"""Java and Python write the same bytes: both halves run the vectors in tests/vectors."""

import json
import subprocess
from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.spark import identity, position

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
IDENTITY = json.loads((VECTORS / "identity.json").read_text())
POSITION = json.loads((VECTORS / "position.json").read_text())


def test_java_agrees_with_every_vector(java_runner: list[str]) -> None:
    answer = subprocess.run([*java_runner, str(VECTORS)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    seals = json.loads((VECTORS / "seals.json").read_text())
    least = sum(map(len, [*IDENTITY.values(), *POSITION.values(), *(story["log"] for story in seals)]))
    assert int(answer.stdout.split()[-1]) >= least


def test_java_half_notices_a_wrong_vector(java_runner: list[str], tmp_path: Path) -> None:
    for path in VECTORS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    wrong = json.loads((VECTORS / "identity.json").read_text())
    wrong["partitions"][-1]["partition"] += 1
    (tmp_path / "identity.json").write_text(json.dumps(wrong))
    answer = subprocess.run([*java_runner, str(tmp_path)], capture_output=True, text=True)
    assert answer.returncode != 0
    assert "expected" in answer.stderr


@pytest.mark.parametrize("vector", IDENTITY["murmur2"], ids=lambda vector: vector["data"][:12])
def test_python_murmur2(vector: dict[str, object]) -> None:
    assert identity.murmur2(bytes.fromhex(str(vector["data"]))) == vector["hash"]


@pytest.mark.parametrize("vector", IDENTITY["identities"], ids=lambda vector: vector["hex"])
def test_python_identity(vector: dict[str, int | str]) -> None:
    wanted = identity.Identity(*(int(vector[name]) for name in identity.Identity._fields))
    assert identity.encode(wanted).hex() == vector["hex"]
    assert identity.decode(bytes.fromhex(str(vector["hex"]))) == wanted


def test_python_output_partition() -> None:
    for vector in IDENTITY["partitions"]:
        key = None if vector["key"] is None else bytes.fromhex(vector["key"])
        wanted = identity.Identity(**vector["identity"])
        assert identity.output_partition(key, wanted, vector["count"]) == vector["partition"], vector


@pytest.mark.parametrize("vector", POSITION["positions"], ids=lambda vector: vector["topic"])
def test_python_position(vector: dict[str, object]) -> None:
    assert position.encode(position.decode(str(vector["json"]))) == vector["json"]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01" * 21, b"\x02" + b"\x00" * 21, b"\x01\x07" + b"\x00" * 20],
    ids=["empty", "short", "v2", "engine"],
)
def test_bytes_that_are_no_identity_are_refused(data: bytes) -> None:
    with pytest.raises(identity.IdentityError):
        identity.decode(data)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version":2,"order":"partition"}', '{"version":1,"order":"kazoo"}']
)
def test_positions_of_other_versions_are_refused(text: str) -> None:
    with pytest.raises(LockstepError):
        position.decode(text)


def test_a_checkpoint_tells_where_its_last_commit_is(tmp_path: Path) -> None:
    assert position.committed(tmp_path) is None
    for batch in (8, 9, 10):
        for folder in ("offsets", "commits"):
            (tmp_path / folder).mkdir(exist_ok=True)
        at = position.Position("payments", batch, {0: batch * 100})
        (tmp_path / "offsets" / str(batch)).write_text("v1\n{}\n" + position.encode(at))
        if batch < 10:
            (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert position.committed(tmp_path) == (9, [position.Position("payments", 9, {0: 900})])
    assert position.committed(tmp_path, back=1) == (8, [position.Position("payments", 8, {0: 800})])
    assert position.committed(tmp_path, back=7) == (8, [position.Position("payments", 8, {0: 800})])
    assert sorted(position.positions(tmp_path)) == [8, 9]


def test_of_two_positions_the_later_has_the_larger_numbers() -> None:
    at = position.Place(5, 2, (10, 20), 30, 1, (10, 20), 0, 0)
    stage = position.Deduplicated(at, ({}, None))
    assert position.Position("a+b", -1, {1: stage, 0: 7}).upcoming == {0: 7, 1: 32}
    assert position.merge_place(stage) == at
