"""The micro-batch engine on real Spark and Kafka: batches are equal on all sites, whatever the operators."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from spark_bench import Bench, Output, accepted, by_identity, wait

from lockstep.spark import identity, position
from lockstep.spark.pipeline import Pipeline, pipeline

pytestmark = pytest.mark.real
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test

SITES = ("site-1", "site-2")


def counting(bench: Bench) -> Pipeline:
    """A running count for each key, through a Python UDF: not for the real-time engine."""

    @F.udf("string")
    def shout(text: str) -> str:
        return text.upper()

    @pipeline(inputs=[bench.topic("in")], output=bench.topic("out"), key="who")
    def count(df: Any) -> Any:
        who = shout(df.key.cast("string")).alias("who")
        return df.groupBy(who).agg(F.count("*").alias("n"), F.max("_sn").alias("_sn"))

    return count


def total(outputs: list[Output], site: str) -> int:
    """The sum of the last counts that a site reported."""
    last: dict[bytes | None, int] = {}
    for output in outputs:
        if output.site == site:
            last[output.key] = max(json.loads(output.value)["n"], last.get(output.key, 0))
    return sum(last.values())


def test_batches_are_equal_on_a_site_that_is_late_and_on_one_that_restarts(bench: Bench) -> None:
    count = counting(bench)
    source, sink = count.inputs[0], count.output
    records = [(f"k{n % 5}", "x") for n in range(600)]
    first = bench.start(count, "site-1", engine="microbatch")
    for at in range(0, 300, 100):
        bench.produce(source, records[at : at + 100])
        bench.outputs(sink, lambda found, at=at: total(found, "site-1") >= at + 100)
    bench.start(count, "site-2", engine="microbatch")
    first.stop()
    for at in range(300, 600, 100):
        bench.produce(source, records[at : at + 100])
        bench.outputs(sink, lambda found, at=at: total(found, "site-2") >= at + 100)
    bench.start(count, "site-1", engine="microbatch")
    found = bench.outputs(sink, lambda found: all(total(found, site) >= 600 for site in SITES))

    one, two = (by_identity(found, site) for site in SITES)
    assert one == two
    batches = {found_identity.a for _, found_identity in one}
    assert len(batches) >= 6, "each hundred was waited for, so it had a batch of its own"
    assert {found_identity.engine for _, found_identity in one} == {identity.MICROBATCH}
    assert len(accepted(found)) == len(one)
    committed = position.committed(bench.folder / "site-2" / "checkpoint")
    assert committed is not None
    assert committed[1][0].seal == committed[0], "Spark's batch is the sealed batch of the same number"


def test_a_batch_takes_all_that_came_while_the_one_before_it_ran(bench: Bench, tmp_path: Path) -> None:
    """Sealed any earlier, what is in it would wait for a whole batch more."""
    began, gate = tmp_path / "began", tmp_path / "gate"

    @F.udf("string")
    def through_the_gate(text: str) -> str:
        began.touch()
        deadline = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return text

    @pipeline(inputs=[bench.topic("in")], output=bench.topic("out"), key="what")
    def slow(df: Any) -> Any:
        return df.select(through_the_gate(df.key.cast("string")).alias("what"), "_shard", "_sn")

    source = slow.inputs[0]
    bench.produce(source, [("first", "x")])
    bench.start(slow, "site-1", engine="microbatch")
    wait(began.exists)
    seals = f"{bench.name}.seals"
    sealed = bench.end(seals)
    bench.produce(source, [("early", "x")])
    three_intervals = time.monotonic() + 1
    while time.monotonic() < three_intervals:
        assert bench.end(seals) == sealed, "a seal that nobody has asked for"
    bench.produce(source, [("late", "x")])
    gate.touch()
    found = bench.outputs(slow.output, lambda found: len(found) >= 3)
    assert {output.key: output.identity.a for output in found} == {b"first": 0, b"early": 1, b"late": 1}


def test_a_stream_stream_join_gives_the_same_pairs_on_both_sites(bench: Bench) -> None:
    """Two inputs: the sources of one query must be admitted to the same sealed batch."""

    @pipeline(inputs=[bench.topic("orders"), bench.topic("payments")], output=bench.topic("out"), key="order")
    def paid(orders: Any, payments: Any) -> Any:
        left = orders.select(orders.key.cast("string").alias("order"), F.col("timestamp").alias("ordered"))
        right = payments.select(payments.key.cast("string").alias("paid"), F.col("timestamp").alias("at"))
        return (
            left.withWatermark("ordered", "1 hour")
            .join(
                right.withWatermark("at", "1 hour"),
                F.expr("order = paid AND at BETWEEN ordered - INTERVAL 1 HOUR AND ordered + INTERVAL 1 HOUR"),
            )
            .select("order")
        )

    orders, payments = paid.inputs
    for site in SITES:
        bench.start(paid, site, engine="microbatch")
    for at in range(0, 60, 20):
        bench.produce(payments, [(f"o{n}", "p") for n in range(at, at + 20)])
        bench.produce(orders, [(f"o{n}", "o") for n in range(at, at + 20)])
        found = bench.outputs(
            paid.output, lambda found, at=at: all(len(by_identity(found, site)) >= at + 20 for site in SITES)
        )
    assert by_identity(found, "site-1") == by_identity(found, "site-2")
    assert sorted(output.key or b"" for output in accepted(found)) == sorted(
        f"o{n}".encode() for n in range(60)
    )


def steps_of(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Counts a key's rows, in Python state."""
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"who": [key[0]], "n": [count]})


def test_python_state_runs(bench: Bench) -> None:
    @pipeline(
        inputs=[bench.topic("in")], output=bench.topic("out"), key="who", options={"outputMode": "update"}
    )
    def steps(df: Any) -> Any:
        grouped = df.select(df.key.cast("string").alias("who")).groupBy("who")
        return grouped.applyInPandasWithState(steps_of, "who string, n int", "n int", "update", "NoTimeout")

    for site in SITES:
        bench.start(steps, site, engine="microbatch")
    for at in (0, 30):
        bench.produce(steps.inputs[0], [(f"k{n % 3}", "x") for n in range(30)])
        found = bench.outputs(
            steps.output, lambda found, at=at: all(total(found, site) >= at + 30 for site in SITES)
        )
    assert by_identity(found, "site-1") == by_identity(found, "site-2")


class Steps(StatefulProcessor):
    """Counts a key's rows, in the newer kind of Python state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(
        self,
        key: tuple[str],
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        count = (self.count.get()[0] if self.count.exists() else 0) + sum(len(frame) for frame in rows)
        self.count.update((count,))
        yield pd.DataFrame({"who": [key[0]], "n": [count]})

    def close(self) -> None: ...


def test_transform_with_state_runs(bench: Bench) -> None:
    @pipeline(
        inputs=[bench.topic("in")], output=bench.topic("out"), key="who", options={"outputMode": "update"}
    )
    def steps(df: Any) -> Any:
        grouped = df.select(df.key.cast("string").alias("who")).groupBy("who")
        return grouped.transformWithStateInPandas(Steps(), "who string, n int", "Update", "None")

    for site in SITES:
        bench.start(steps, site, engine="microbatch")
    for at in (0, 30):
        bench.produce(steps.inputs[0], [(f"k{n % 3}", "x") for n in range(30)])
        found = bench.outputs(
            steps.output, lambda found, at=at: all(total(found, site) >= at + 30 for site in SITES)
        )
    assert by_identity(found, "site-1") == by_identity(found, "site-2")


def test_a_window_is_emitted_once_its_watermark_has_passed_also_when_input_stops(bench: Bench) -> None:
    @pipeline(inputs=[bench.topic("in")], output=bench.topic("out"), key="who")
    def windows(df: Any) -> Any:
        at = F.timestamp_seconds(df.value.cast("string").cast("long")).alias("at")
        return (
            df.select(df.key.cast("string").alias("who"), at)
            .withWatermark("at", "1 second")
            .groupBy(F.window("at", "10 seconds"), "who")
            .count()
            .select("who", F.col("window.start").cast("long").alias("start"), "count")
        )

    bench.start(windows, "site-1", engine="microbatch")
    bench.produce(windows.inputs[0], [("a", str(second)) for second in (1, 2, 3, 12, 31)])
    found = bench.outputs(windows.output, lambda found: len(found) >= 2)
    counts = {json.loads(output.value)["start"]: json.loads(output.value)["count"] for output in found}
    assert counts == {0: 3, 10: 1}
