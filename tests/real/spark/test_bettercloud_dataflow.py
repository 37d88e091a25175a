"""BetterCloud in Spark: alert by alert what the oracle says, in both engines' dataflows, on static DataFrames.

In real time an aggregation gives a row for each input. On a static DataFrame it gives one for each group, so every
prefix of the sequence becomes a shard of its own, and of shard n's rows those of `_sn` n count.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "bettercloud"))

import batches
import dataflow
from bettercloud_cases import control, event, sequence
from oracle import EVERYBODY, Alert, Ordered, alert_of, compare, replay

from lockstep.spark import engine

pytestmark = pytest.mark.real

cloudpickle.register_pickle_by_value(batches)
cloudpickle.register_pickle_by_value(dataflow)

COLUMNS = "_shard int, _sn long, topic string, value binary"
Rows = list[tuple[int, int, str, bytes | None]]


def shard(number: int, order: Iterable[Ordered]) -> Rows:
    return [
        (number, one.sn, dataflow.CONTROLS if one.is_control else "customer-events", one.value)
        for one in order
    ]


def prefixes(order: Sequence[Ordered]) -> Rows:
    return [row for end in range(len(order)) for row in shard(end, order[: end + 1])]


def alerts(rows: DataFrame) -> list[Alert]:
    fitted = engine.fit(rows, "customerId", "microbatch", 1)
    return sorted((alert_of(bytes(row.value)) for row in fitted.collect()), key=lambda alert: alert.place)


def in_real_time(spark: SparkSession, order: Sequence[Ordered]) -> list[Alert]:
    merged = spark.createDataFrame(prefixes(order), COLUMNS)
    found = dataflow.qualified_events(merged).where("_sn = _shard").withColumn("shard", F.lit(0))
    return alerts(found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_real_time_dataflow_raises_the_oracles_alerts(spark: SparkSession, seed: int) -> None:
    order = sequence(seed, 150)
    expected = replay({0: order})
    assert len(expected) > 40
    assert compare(expected, in_real_time(spark, order), counted=False) is None


def test_the_counter_stage_numbers_the_alerts_of_the_first(spark: SparkSession) -> None:
    expected = replay({0: sequence(4, 200)})
    first_stage = [replace(alert, times=None) for alert in expected]
    values = [
        (end, sn, _json(one)) for end in range(len(expected)) for sn, one in enumerate(first_stage[: end + 1])
    ]
    qualified = spark.createDataFrame(values, "_shard int, _sn long, value string")
    assert compare(expected, alerts(dataflow.counted_alerts(qualified).where("_sn = _shard"))) is None


@pytest.mark.parametrize("seed", [5, 6])
def test_the_micro_batch_dataflow_raises_the_oracles_alerts_on_every_shard(
    spark: SparkSession, seed: int
) -> None:
    orders = {0: sequence(seed, 400), 1: sequence(seed + 100, 300)}
    rows = [row for number, order in orders.items() for row in shard(number, order)]
    found = alerts(batches.alerts_in_batches(spark.createDataFrame(rows[::-1], COLUMNS)))
    assert compare(replay(orders), found) is None


def test_behind_the_stage_of_changed_rules_the_alerts_are_the_same(spark: SparkSession) -> None:
    order = sequence(7, 200)
    controls = [one for one in order if one.is_control]
    passed = {
        row._sn
        for row in dataflow.changed_rules(spark.createDataFrame(prefixes(order), COLUMNS))
        .where("_sn = _shard")
        .collect()
    }
    assert 0 < len(passed) < len(controls) / 2
    kept = [one for one in order if not one.is_control or one.sn in passed]
    assert replay({0: kept}) == replay({0: order})


def test_rules_that_are_said_again_pass_once(spark: SparkSession) -> None:
    said = [control(who, "docs", "a", ("$.kind", "x")) for who in (EVERYBODY, "ann")] * 20
    order = [Ordered(sn, True, value) for sn, value in enumerate(said)]
    rows = (
        dataflow.changed_rules(spark.createDataFrame(prefixes(order), COLUMNS))
        .where("_sn = _shard")
        .collect()
    )
    assert sorted((row._sn, row.key) for row in rows) == [(0, EVERYBODY), (1, "ann")]


def test_a_rule_for_everybody_reaches_every_bucket(spark: SparkSession) -> None:
    names = [f"customer-{number}" for number in range(200)]
    order = [Ordered(0, True, control(EVERYBODY, "docs", "a", ("$.kind", "x")))]
    order += [Ordered(sn, False, event(name, {"kind": "x"})) for sn, name in enumerate(names, start=1)]
    assert {alert.customerId for alert in in_real_time(spark, order)} == set(names)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVERYBODY", "somebody"),
        ("_by_alert_id", lambda controls, *, last: controls),
        ("_met", lambda controls: controls),
        ("_is_valid", lambda control: control["customerId"].isNotNull()),
    ],
)
def test_a_planted_bug_in_the_dataflow_is_found(
    spark: SparkSession, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_check = control("ann", "docs", "never", ("$.kind", "shared"), check="contains")
    values = [(True, unknown_check), (False, event("ann", {"kind": "shared"}))]
    values += [(one.is_control, one.value) for one in sequence(8, 60)]
    order = [Ordered(sn, *value) for sn, value in enumerate(values)]
    monkeypatch.setattr(dataflow, name, value)
    assert compare(replay({0: order}), in_real_time(spark, order), counted=False) is not None


def _json(alert: Alert) -> str:
    return json.dumps({name: value for name, value in asdict(alert).items() if name != "times"})
