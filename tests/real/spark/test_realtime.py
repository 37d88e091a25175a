"""The real-time engine on real Spark and Kafka."""

import json
import re
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from spark_bench import Bench, accepted, by_identity, wait

from lockstep.errors import UsageError
from lockstep.spark import engine, seals
from lockstep.spark.pipeline import Pipeline, pipeline

pytestmark = pytest.mark.real


def counting(bench: Bench) -> Pipeline:
    """A running count and sum for each message key."""

    @pipeline(inputs=[bench.topic("in")], output=bench.topic("out"), key="customer")
    def count(df: Any) -> Any:
        return df.groupBy(df.key.cast("string").alias("customer")).agg(
            F.count("*").alias("n"),
            F.sum(df.value.cast("string").cast("int")).alias("total"),
            F.max("_sn").alias("_sn"),
            F.max("_shard").alias("_shard"),
        )

    return count


def test_two_sites_write_the_same_outputs_and_a_restarted_one_repeats_them(bench: Bench) -> None:
    count = counting(bench)
    source, sink = count.inputs[0], count.output
    records = [(f"k{n % 7}", str(n)) for n in range(700)]
    first = bench.start(count, "site-1")
    bench.produce(source, records[:300])
    bench.outputs(sink, lambda found: len(found) >= 300)
    bench.start(count, "site-2")
    bench.outputs(sink, lambda found: len(by_identity(found, "site-2")) >= 300)
    bench.produce(source, records[300:500])
    bench.outputs(sink, lambda found: len(by_identity(found, "site-1")) >= 500)
    first.stop()
    bench.produce(source, records[500:])
    bench.start(count, "site-1")
    found = bench.outputs(
        sink, lambda found: all(len(by_identity(found, site)) >= 700 for site in ("site-1", "site-2"))
    )

    assert by_identity(found, "site-1") == by_identity(found, "site-2")
    assert len(found) > 1400, "the restarted site repeats what its checkpoint does not hold"
    kept = accepted(found)
    assert len(kept) == 700
    for key in {key for key, _ in records}:
        mine = [json.loads(output.value) for output in kept if output.key == key.encode()]
        numbers = [int(value) for one, value in records if one == key]
        assert [one["n"] for one in mine] == list(range(1, len(numbers) + 1))
        assert [one["total"] for one in mine] == [sum(numbers[: n + 1]) for n in range(len(numbers))]


def test_an_input_that_causes_several_rows_numbers_them(bench: Bench) -> None:
    @pipeline(inputs=[bench.topic("in")], output=bench.topic("out"))
    def words(df: Any) -> Any:
        return df.select(F.explode(F.split(df.value.cast("string"), " ")).alias("value"), "_sn", "_shard")

    bench.start(words, "site-1")
    bench.produce(words.inputs[0], [("a", "to be or not"), ("b", "to be")])
    found = bench.outputs(words.output, lambda found: len(found) == 6)
    sequences: dict[Any, list[bytes]] = {}
    for output in sorted(found, key=lambda output: output.identity):
        assert output.key is None
        sequences.setdefault((output.identity.shard, output.identity.a), []).append(output.value)
        assert output.identity.b == len(sequences[output.identity.shard, output.identity.a]) - 1
    assert sorted(sequences.values()) == [[b"to", b"be"], [b"to", b"be", b"or", b"not"]]


def test_a_poison_record_is_named_and_a_skip_lets_the_site_pass(bench: Bench) -> None:
    @pipeline(inputs=[bench.topic("in", 1)], output=bench.topic("out"))
    def parse(df: Any) -> Any:
        return df.select(df.value.cast("string").cast("int").alias("number"), "_sn")

    one = {"input_partitions": {parse.inputs[0]: 1}}
    query = bench.start(parse, "site-1", **one)
    bench.produce(parse.inputs[0], [("a", "1"), ("a", "2"), ("a", "three"), ("a", "4")])
    assert "CAST_INVALID_INPUT" in bench.failure(query)
    suspect = engine.suspect(bench.spark)
    assert suspect is not None
    assert (suspect.topic, suspect.shard, suspect.offset) == (parse.inputs[0], 0, 2)

    bench.queries.clear()
    bench.produce_bytes(
        f"{bench.name}.seals", seals.skip(suspect.topic, suspect.shard, suspect.offset, suspect.reason)
    )
    bench.start(parse, "site-1", **one)
    found = bench.outputs(parse.output, lambda found: len(accepted(found)) == 3)
    assert [
        json.loads(output.value)["number"] for output in accepted(sorted(found, key=lambda o: o.identity))
    ] == [1, 2, 4]


def test_a_record_without_a_key_is_named_where_its_group_would_come_from_several_shards(bench: Bench) -> None:
    count = counting(bench)
    query = bench.start(count, "site-1")
    bench.produce(count.inputs[0], [("a", "1"), (None, "2"), ("b", "3")], partition=1)
    assert f"{count.inputs[0]}-1 at offset 1 has no key" in bench.failure(query)
    suspect = engine.suspect(bench.spark)
    assert suspect is not None
    assert (suspect.topic, suspect.shard, suspect.offset) == (count.inputs[0], 1, 1)

    bench.queries.clear()
    bench.produce_bytes(f"{bench.name}.seals", seals.skip(suspect.topic, 1, 1, suspect.reason))
    bench.start(count, "site-1")
    found = bench.outputs(count.output, lambda found: len(accepted(found)) == 2)
    assert {output.key for output in accepted(found)} == {b"a", b"b"}


def test_rows_of_a_stage_that_have_no_key_are_one_group_of_the_next(bench: Bench) -> None:
    @pipeline(inputs=[bench.topic("in")], output=bench.topic("stage"))
    def forget_the_key(df: Any) -> Any:
        return df.select(F.lit(None).cast("string").alias("key"), "value", "_sn", "_shard")

    @pipeline(inputs=[forget_the_key.output], output=bench.topic("out"), key="customer")
    def count(df: Any) -> Any:
        return df.groupBy(df.key.cast("string").alias("customer")).agg(
            F.count("*").alias("n"), F.max("_sn").alias("_sn"), F.max("_shard").alias("_shard")
        )

    stage = {"stage_topics": [forget_the_key.output]}
    first = {"checkpoint": bench.folder / "first", "seals": f"{bench.name}.first.seals"}
    bench.start(forget_the_key, "site-1", **stage, **first)
    bench.produce(forget_the_key.inputs[0], [(f"k{n}", str(n)) for n in range(20)])
    bench.start(count, "site-1", **stage)
    found = bench.outputs(count.output, lambda found: len(found) >= 20)
    assert sorted(json.loads(output.value)["n"] for output in found) == list(range(1, 21))
    assert len({output.identity.shard for output in found}) == 1


def test_retention_that_passed_the_checkpoint_stops_the_site_with_the_offsets(bench: Bench) -> None:
    count = counting(bench)
    query = bench.start(count, "site-1")
    bench.produce(count.inputs[0], [("k", str(n)) for n in range(10)])
    bench.outputs(count.output, lambda found: len(found) >= 10)
    query.stop()
    bench.produce(count.inputs[0], [("k", str(n)) for n in range(50)])
    bench.truncate(count.inputs[0], 40)
    message = bench.failure(bench.start(count, "site-1"))
    assert "retention has removed" in message
    assert "has offsets 40 to" in message


def test_a_query_that_ended_with_a_reducers_words_is_explained_by_those_of_the_reader(bench: Bench) -> None:
    marker = "lockstep says: "  # not in the line that raises, which the traceback repeats

    def fail(_: int) -> int:
        context = TaskContext.get()
        assert context is not None
        raise ValueError(f"{marker}task {context.taskAttemptId()} is full | empty it |")

    with pytest.raises(PythonException) as raised:
        bench.spark.sparkContext.parallelize([1], 1).map(fail).collect()
    failed = re.search(r"task (\d+) is full", str(raised.value))
    assert failed is not None
    for told in (
        "Connection to streaming shuffle writer {} closed before termination; it likely failed.",
        "Error creating transport client to shuffle writer with id {} and location (driver): it likely failed.",
    ):
        first = engine.failure(RuntimeError(told.format(failed[1])), bench.spark)
        unknown = engine.failure(RuntimeError(told.format(999_999)), bench.spark)
        assert (first.message, first.hint) == (f"task {failed[1]} is full", "empty it")
        assert "likely failed" in unknown.message


def test_a_topic_that_was_created_again_is_not_taken_for_the_old_one(bench: Bench) -> None:
    count = counting(bench)
    query = bench.start(count, "site-1")
    bench.produce(count.inputs[0], [("k", "1")])
    bench.outputs(count.output, lambda found: len(found) >= 1)
    query.stop()
    bench.recreate(count.inputs[0])
    assert "created again" in bench.failure(bench.start(count, "site-1"))


def test_a_topic_that_is_not_there_is_named(bench: Bench) -> None:
    @pipeline(inputs=["no-such-topic"], output=bench.topic("out"))
    def copy(df: Any) -> Any:
        return df.select("value", "_sn", "_shard")

    assert "no input topic no-such-topic" in bench.failure(bench.start(copy, "site-1"))


def test_an_output_topic_that_is_not_there_is_named(bench: Bench) -> None:
    copy = Pipeline(
        lambda df: df.select("value", "_sn", "_shard"), (bench.topic("in"),), "no-such-output", name="p"
    )
    assert 'no output topic "no-such-output"' in bench.failure(bench.start(copy, "site-1"))


def test_an_output_that_is_too_large_stops_the_site(bench: Bench) -> None:
    options = {"kafka.max.request.size": "2000"}
    topics = ((bench.topic("in"),), bench.topic("out"))
    copy = Pipeline(lambda df: df.select("value", "_sn", "_shard"), *topics, options=options, name="p")
    query = bench.start(copy, "site-1")
    bench.produce(copy.inputs[0], [("a", "x" * 3000)])
    assert "Kafka refused an output" in bench.failure(query)


def test_a_sequence_number_that_goes_back_stops_the_site(bench: Bench) -> None:
    """Readers would silently drop such rows as repeated ones."""

    @pipeline(inputs=[bench.topic("in", 1)], output=bench.topic("out"))
    def backwards(df: Any) -> Any:
        return df.select("value", (100 - df._sn).alias("_sn"))

    query = bench.start(backwards, "site-1", input_partitions={backwards.inputs[0]: 1})
    bench.produce(backwards.inputs[0], [("a", "1"), ("a", "2")])
    assert "went back from 100 to 99" in bench.failure(query)


def test_an_output_without_its_cause_is_refused(bench: Bench) -> None:
    topic = bench.topic("in")
    without_sn = Pipeline(lambda df: df.select("value"), (topic,), "out", name="p")
    with pytest.raises(UsageError, match="no column _sn"):
        bench.start(without_sn, "site-1")
    without_shard = Pipeline(lambda df: df.select("value", "_sn"), (topic,), "out", name="p")
    with pytest.raises(UsageError, match="no column _shard"):
        bench.start(without_shard, "site-1")


def test_progress_is_known_within_a_batch(bench: Bench) -> None:
    count = counting(bench)
    bench.start(count, "site-1", batch_ms=60_000)
    bench.produce(count.inputs[0], [("k", "1")] * 5)
    bench.outputs(count.output, lambda found: len(found) == 5)
    wait(lambda: sum(bench.progress().positions.get(count.inputs[0], {}).values()) == 5)
    wait(lambda: bench.progress().lag == 0)  # an empty partition's reader learns its end a moment later
