"""States of replicas are compared row by row; a planted difference is found and named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockstep.errors import LockstepError
from lockstep.replicas.layout import RunFolder
from lockstep.replicas.manifest import InputTopic, Manifest, OutputTopic
from lockstep.replicas.settings import RunSettings
from lockstep.spark import position, states
from lockstep.spark.states import NotComparableError

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


class Replica:
    """A checkpoint that a real query wrote: each batch is a file of JSON lines."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark = spark
        self._input = folder / f"{name}-input"
        self._input.mkdir(parents=True)
        self.checkpoint = folder / "sites" / name / "checkpoint"
        self._batches = 0

    def counts(self, *batches: dict[str, int]) -> "Replica":
        """Count per key, one batch after the other."""
        self._write(batches)
        self._run(self._read("k string").groupBy("k").count(), "update")
        return self

    def _write(self, batches: tuple[dict[str, int], ...]) -> None:
        for batch in batches:
            lines = [json.dumps({"k": key, "n": n}) for key, count in batch.items() for n in range(count)]
            (self._input / f"{self._batches}.json").write_text("\n".join(lines))
            self._batches += 1

    def _read(self, schema: str) -> DataFrame:
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._input))

    def _run(self, rows: DataFrame, mode: str) -> None:
        query = (
            rows.writeStream.format("noop")
            .outputMode(mode)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def at(self, *positions: int) -> "Replica":
        """Let the checkpoint say that batch n ends at the n-th position, as our source would."""
        for batch, end in enumerate(positions):
            file = self.checkpoint / "offsets" / str(batch)
            head = file.read_text().splitlines()[:2]
            said = position.encode(position.Position("events", -1, {0: end}))
            file.write_text("\n".join([*head, said]))
            file.with_name(f".{batch}.crc").unlink(missing_ok=True)
        return self


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path)
    manifest = Manifest(
        version=2,
        run="r",
        pipeline="counts",
        fingerprint="",
        inputs=(InputTopic("events", 1, "id", (0,)),),
        output=OutputTopic("out", 1),
        engine="realtime",
        order="partition",
        order_why="",
        created=0.0,
    )
    manifest.write(run.manifest)
    RunSettings("r", "none.py", "none:1").write(run.settings)
    return run


def command(folder: RunFolder, *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lockstep", "state", str(folder.path), *more],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "400"},
    )


def test_equal_states_are_equal_though_batches_were_cut_elsewhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = Replica(spark, tmp_path, "site-1").counts({"ann": 3, "bob": 1}, {"ann": 1}).at(4, 5)
    two = Replica(spark, tmp_path, "site-2").counts({"ann": 4, "bob": 1}).at(5)
    at = states.common(one.checkpoint, two.checkpoint)
    assert at.batches == (1, 0)
    result = states.compare(spark, (one.checkpoint, two.checkpoint), at)
    assert (result.difference, result.rows, result.views) == (None, 2, 1)


def test_the_first_difference_is_named_by_the_command(spark: SparkSession, folder: RunFolder) -> None:
    Replica(spark, folder.path, "site-1").counts({"ann": 3, "bob": 1, "cy": 2}).at(6)
    two = Replica(spark, folder.path, "site-2").counts({"ann": 3, "bob": 2, "cy": 1}).at(6)
    answer = command(folder)
    assert answer.returncode == 1, answer.stderr
    assert "the states differ in 4 rows, at events 0:6" in answer.stdout
    assert '{"key":{"k":"bob"}}' in answer.stdout or '{"key":{"k":"cy"}}' in answer.stdout
    assert '"value":{"count":1}' in answer.stdout
    two.at(7)
    answer = command(folder)
    assert answer.returncode == 3
    assert "no position in common" in answer.stderr
    assert "let the input rest" in answer.stderr


def test_a_key_that_only_one_has_is_a_difference(spark: SparkSession, tmp_path: Path) -> None:
    one = Replica(spark, tmp_path, "site-1").counts({"ann": 1, "bob": 1}).at(2)
    two = Replica(spark, tmp_path, "site-2").counts({"ann": 1}).at(2)
    paths = (one.checkpoint, two.checkpoint)
    found = states.compare(spark, paths, states.common(*paths)).difference
    assert found is not None
    assert found.key == '{"key":{"k":"bob"}}'
    assert (len(found.rows[0]), found.rows[1], found.count) == (1, (), 1)


def test_checkpoints_without_a_common_position_are_not_compared(spark: SparkSession, tmp_path: Path) -> None:
    one = Replica(spark, tmp_path, "site-1").counts({"ann": 1}).at(1)
    two = Replica(spark, tmp_path, "site-2").counts({"ann": 2}).at(2)
    with pytest.raises(NotComparableError, match="site-1 and site-2 have committed no position in common"):
        states.common(one.checkpoint, two.checkpoint)


def test_a_state_that_is_gone_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    one = Replica(spark, tmp_path, "site-1").counts({"ann": 1}).at(1)
    two = Replica(spark, tmp_path, "site-2").counts({"ann": 1}).at(1)
    for file in two.checkpoint.glob("state/0/*/*.changelog*"):
        file.unlink()
    paths = (one.checkpoint, two.checkpoint)
    with pytest.raises(LockstepError, match="Spark cannot read"):
        states.compare(spark, paths, states.common(*paths))
