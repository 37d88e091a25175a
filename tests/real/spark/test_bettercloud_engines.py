"""BetterCloud in both engines on real Kafka: two sites, the oracle's alerts, each once.

One topic stands for the merged input: its offsets are the agreed order, and a message key tells control events
from events.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from spark_bench import Bench, Output, accepted

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "bettercloud"))

import batches
import dataflow
from bettercloud_cases import sequence
from oracle import Alert, Ordered, alert_of, compare, replay

from lockstep.spark.pipeline import Pipeline, pipeline

pytestmark = pytest.mark.real

SITES = ("site-1", "site-2")
ORDER = [one for one in sequence(21, 400) if one.value]
ORDER = [Ordered(sn, one.is_control, one.value) for sn, one in enumerate(ORDER)]
EXPECTED = replay({0: ORDER})

cloudpickle.register_pickle_by_value(batches)
cloudpickle.register_pickle_by_value(dataflow)


def merged(df: Any) -> Any:
    return df.withColumn(
        "topic", F.when(df.key.cast("string") == "control", dataflow.CONTROLS).otherwise("events")
    )


def declared(bench: Bench, dataflow_of: Any) -> Pipeline:
    return pipeline(inputs=[bench.topic("in", 1)], output=bench.topic("out"), key="customerId")(
        lambda df: dataflow_of(merged(df))
    )


def produce(bench: Bench, topic: str, order: Sequence[Ordered]) -> None:
    bench.produce(
        topic, [("control" if one.is_control else "event", (one.value or b"").decode()) for one in order]
    )


def alerts(found: Sequence[Output]) -> list[Alert]:
    return [alert_of(one.value) for one in accepted(found)]


def run(bench: Bench, declared: Pipeline, engine: str) -> list[Alert]:
    """The inputs in several batches, on two sites; what a reader of the output keeps."""
    for site in SITES:
        bench.start(declared, site, engine=engine, input_partitions={declared.inputs[0]: 1})
    found: list[Output] = []
    for begin in range(0, len(ORDER), 100):
        produce(bench, declared.inputs[0], ORDER[begin : begin + 100])
        wanted = sum(one.sn < begin + 100 for one in EXPECTED)
        found = bench.outputs(
            declared.output,
            lambda found, wanted=wanted: all(
                sum(one.site == site for one in found) >= wanted for site in SITES
            ),
        )
    return alerts(found)


def test_the_first_stage_raises_the_oracles_alerts_in_real_time(bench: Bench) -> None:
    found = run(bench, declared(bench, dataflow.qualified_events), "realtime")
    assert compare(EXPECTED, found, counted=False) is None


def test_all_stages_raise_the_oracles_alerts_in_micro_batches(bench: Bench) -> None:
    found = run(bench, declared(bench, batches.alerts_in_batches), "microbatch")
    assert compare(EXPECTED, found, in_order=False) is None
