"""Several topics in one order, read by the real source: what a restart finds where it stopped."""

from typing import Any

import pytest
from spark_bench import Bench, accepted, by_identity

from lockstep.order.records import Cut, encode
from lockstep.spark.pipeline import Pipeline, pipeline

pytestmark = pytest.mark.real


def copying(bench: Bench) -> Pipeline:
    topics = (bench.topic("a", partitions=1), bench.topic("b", partitions=1))

    @pipeline(inputs=[topics], output=bench.topic("out"))
    def copy(df: Any) -> Any:
        return df.select("value", "_sn", "_shard")

    return copy


def test_a_site_that_stopped_in_the_midst_of_a_cut_goes_on_there(bench: Bench) -> None:
    copy = copying(bench)
    order = bench.topic("order", partitions=1)
    a, b = (f"{bench.name}.a", f"{bench.name}.b")
    how = {
        "order": "liverobin",
        "order_places": [f"{order}:0"],
        "input_partitions": {a: 1, b: 1},
        "batch_ms": 500,
    }
    first = bench.start(copy, "site-1", **how)
    bench.produce_bytes(order, encode(Cut((4, 4))))
    for topic, count in ((a, 4), (b, 2)):  # the cut admits two more than are there
        bench.produce(topic, [("k", f"{topic[-1]}{number}") for number in range(count)])
    bench.outputs(copy.output, lambda found: len(found) == 5)
    first.stop()
    bench.start(copy, "site-1", **how)
    bench.produce(b, [("k", "b2"), ("k", "b3")])
    found = bench.outputs(copy.output, lambda found: len(by_identity(found, "site-1")) == 8)
    in_order = [value for _, value in sorted((out.identity.mark, out.value) for out in found)]
    assert list(dict.fromkeys(in_order)) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2", b"a3", b"b3"]


@pytest.mark.parametrize("engine", ["realtime", "microbatch"])
def test_a_partition_that_a_cut_adds_is_read_from_that_cut_on_also_after_a_restart(
    bench: Bench, engine: str
) -> None:
    copy = copying(bench)
    order = bench.topic("order", partitions=1)
    a, b = (f"{bench.name}.a", f"{bench.name}.b")
    how = {
        "engine": engine,
        "order": "liverobin",
        "order_places": [f"{order}:0"],
        "input_partitions": {a: 1, b: 1},
        "batch_ms": 500,
    }

    def distinct(count: int) -> list[bytes]:
        found = bench.outputs(copy.output, lambda found: len(by_identity(found, "site-1")) == count)
        return [value for _, value in sorted((out.identity.mark, out.value) for out in accepted(found))]

    first = bench.start(copy, "site-1", **how)
    bench.produce(a, [("k", "a0"), ("k", "a1")])
    bench.produce(b, [("k", "b0")])
    bench.produce_bytes(order, encode(Cut((1, 1))))
    assert distinct(2) == [b"a0", b"b0"]
    bench.grow(b, 2)
    bench.produce(b, [("k", "c0"), ("k", "c1")], partition=1)
    bench.produce_bytes(order, encode(Cut((2, 1, 1), added=((b, 1),))))
    assert distinct(4) == [b"a0", b"b0", b"a1", b"c0"]
    first.stop()
    bench.start(copy, "site-1", **how)
    bench.produce(a, [("k", "a2")])
    bench.produce_bytes(order, encode(Cut((3, 1))))  # of a generator that has not heard of it
    bench.produce_bytes(order, encode(Cut((3, 1, 2), added=((b, 1),))))
    assert distinct(6) == [b"a0", b"b0", b"a1", b"c0", b"a2", b"c1"]


def test_order_inband_in_micro_batches_ends_the_query_with_our_words(bench: Bench) -> None:
    """A run is refused before; where the engine is chosen by the plan, the source says it."""
    query = bench.start(
        copying(bench),
        "site-1",
        engine="microbatch",
        order="inband",
        order_places=["*"],
        input_partitions={f"{bench.name}.a": 1, f"{bench.name}.b": 1},
    )
    assert "no end that is known before it is read" in bench.failure(query)
