"""Are the states of two replicas equal? Both checkpoints, read by Spark's state reader at one position.

Equal outputs so far do not prove equal states: a difference may wait in a key that no input has touched since.
States can be compared where both sites have committed the same position:

- Micro-batch: every batch is the same on all sites, so any batch that both have committed will do.
- Real time: batches end by the clock, each site's own. Two sites stand at the same position once the input rests
  and both have committed all of it; otherwise only by chance, and then there is nothing to compare.

A state that keeps things in the order of arrival (what `collect_list` gathers) may differ in that order alone in
micro-batch, where the rows of a batch have none.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from lockstep.errors import LockstepError
from lockstep.spark.engine import failure
from lockstep.spark.position import Position, positions

_SHOWN = 20
_KEY = "key"
_TROUBLE = (PySparkException, Py4JError)


class NotComparableError(LockstepError):
    """The checkpoints have no position in common: this says nothing about their states."""

    exit_code = 3


@dataclass(frozen=True)
class Common:
    """A position that both checkpoints have committed: as which batch, and where it is."""

    batches: tuple[int, int]
    positions: tuple[Position, ...]

    def __str__(self) -> str:
        places = (f"{one.topic} {shard}:{sn}" for one in self.positions for shard, sn in one.upcoming.items())
        return ", ".join(places)


@dataclass(frozen=True)
class View:
    """One thing that an operator keeps: a store, one side of a join, a state variable."""

    operator: int
    kind: str
    name: str
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"operator {self.operator} ({self.kind}, {self.name})"


@dataclass(frozen=True)
class Difference:
    """The first row, by partition and key, that is not in both states."""

    view: View
    partition: int
    key: str
    rows: tuple[tuple[str, ...], tuple[str, ...]]
    """What each of the two has for this key and the other has not."""
    count: int
    """How many rows are in one of the two alone."""


@dataclass(frozen=True)
class Comparison:
    rows: int
    views: int
    difference: Difference | None


def common(one: Path, two: Path) -> Common:
    """The newest position that both have committed. Raises `NotComparableError`."""
    by_place = {_place(at): batch for batch, at in sorted(positions(one).items())}
    for batch, at in sorted(positions(two).items(), reverse=True):
        if (same := by_place.get(_place(at))) is not None:
            return Common((same, batch), tuple(at))
    names = " and ".join(path.parent.name for path in (one, two))
    raise NotComparableError(
        f"{names} have committed no position in common",
        hint="let the input rest until both have committed all of it, for about two batches, and ask again",
    )


def compare(spark: SparkSession, checkpoints: tuple[Path, Path], at: Common) -> Comparison:
    """Compare all that two replicas of a stage keep at a position that both have committed."""
    views = list(_views(spark, checkpoints[0]))
    others = list(_views(spark, checkpoints[1]))
    if views != others:
        raise LockstepError(
            f"{checkpoints[0]} and {checkpoints[1]} keep different things: {_names(views)}; {_names(others)}",
            hint="are both of the same run?",
        )
    total = 0
    for view in views:
        rows = [_rows(spark, path, batch, view) for path, batch in zip(checkpoints, at.batches, strict=True)]
        count, difference = _difference(view, rows[0], rows[1])
        total += count
        if difference is not None:
            return Comparison(total, len(views), difference)
    return Comparison(total, len(views), None)


def _place(at: list[Position]) -> tuple[object, ...]:
    # Not the places themselves: one place can be said in several ways, by the order records that were read so far.
    return tuple(sorted((one.topic, one.seal, tuple(one.upcoming.items())) for one in at))


def _names(views: list[View]) -> str:
    return ", ".join(map(str, views)) or "nothing"


def _views(spark: SparkSession, checkpoint: Path) -> Iterator[View]:
    if not (checkpoint / "state").is_dir():
        return
    stores = spark.read.format("state-metadata").load(str(checkpoint))
    operators: dict[int, tuple[str, list[str], dict[str, Any]]] = {}
    for row in stores.collect():
        properties = json.loads(row["operatorProperties"] or "{}")
        operators.setdefault(row["operatorId"], (row["operatorName"], [], properties))[1].append(
            row["stateStoreName"]
        )
    for operator, (kind, names, properties) in sorted(operators.items()):
        if variables := properties.get("stateVariables"):
            for variable in sorted(one["stateName"] for one in variables):
                yield View(operator, kind, variable, {"stateVarName": variable})
            if properties.get("timeMode", "NoTime") != "NoTime":
                yield View(operator, kind, "timers", {"readRegisteredTimers": "true"})
        elif any(name.startswith(("left-", "right-")) for name in names):
            for side in ("left", "right"):
                yield View(operator, kind, side, {"joinSide": side})
        else:
            for name in sorted(names):
                yield View(operator, kind, name, {"storeName": name})


def _rows(spark: SparkSession, checkpoint: Path, batch: int, view: View) -> DataFrame:
    reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", view.operator)
    try:
        state = reader.options(**view.options).load(str(checkpoint))
    except _TROUBLE as error:
        raise LockstepError(f"Spark cannot read {view} of {checkpoint}: {failure(error).message}") from error
    kept = [column for column in state.columns if column != "partition_id"]
    keys = [column for column in kept if column == _KEY] or kept
    return state.select(
        f.col("partition_id").alias("partition"),
        f.to_json(f.struct(*(_column(state, column) for column in keys))).alias("key"),
        f.to_json(f.struct(*(_column(state, column) for column in kept))).alias("row"),
    )


def _column(state: DataFrame, name: str) -> Column:
    """Field by field: rows of a join hold one more field than their schema says, and names may come twice."""
    kind = state.schema[name].dataType
    if not isinstance(kind, StructType):
        return f.col(name)
    if len(set(kind.names)) == len(kind.names):
        return f.struct(*(f.col(f"{name}.`{part}`").alias(part) for part in kind.names)).alias(name)
    seen: Counter[str] = Counter()
    renamed = StructType()
    for part in kind.fields:
        seen[part.name] += 1
        suffix = f" {seen[part.name]}" if seen[part.name] > 1 else ""
        renamed.add(f"{part.name}{suffix}", part.dataType)
    return f.col(name).cast(renamed).alias(name)


def _difference(view: View, one: DataFrame, two: DataFrame) -> tuple[int, Difference | None]:
    """(rows of the first, the first difference)."""
    both = one.withColumn("more", f.lit(1)).unionByName(two.withColumn("more", f.lit(-1)))
    summed = both.groupBy("partition", "key", "row").agg(
        f.sum("more").alias("more"), f.sum(f.greatest(f.col("more"), f.lit(0))).alias("rows")
    )
    summed = summed.cache()
    try:
        rows = summed.agg(f.sum("rows")).collect()[0][0] or 0
        wrong = summed.where("more != 0")
        count = wrong.count()
        first = wrong.orderBy("partition", "key", "row").limit(_SHOWN).collect()
    except _TROUBLE as error:
        raise LockstepError(f"Spark cannot read {view}: {failure(error).message}") from error
    finally:
        summed.unpersist()
    if not first:
        return rows, None
    place = (first[0]["partition"], first[0]["key"])
    same_key = [row for row in first if (row["partition"], row["key"]) == place]
    sides = tuple(tuple(row["row"] for row in same_key if row["more"] * sign > 0) for sign in (1, -1))
    return rows, Difference(view, place[0], place[1], (sides[0], sides[1]), count)
