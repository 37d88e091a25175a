"""The determinism guard on plans of real Spark: what it refuses, and that it refuses nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.errors import UsageError
from lockstep.spark import engine, guard

pytestmark = pytest.mark.real

Plan = Callable[[Any], Any]


def text() -> Any:
    return F.col("value").cast("string")


def by_key(*aggregates: Callable[[], Any]) -> Plan:
    return lambda df: df.groupBy("key").agg(*(make().alias(f"c{n}") for n, make in enumerate(aggregates)))


def windowed(df: Any) -> Any:
    return df.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"), "key").count()


def in_both(df: Any) -> Any:
    parsed = df.select("key", "_sn", F.from_json(text(), "a string, b array<int>").alias("j"))
    exploded = parsed.select("key", "_sn", F.explode("j.b").alias("b")).filter("b > 3")
    grouped = exploded.groupBy(F.col("key").cast("string").alias("k")).agg(
        F.max_by(F.struct("b"), "_sn").alias("last"),
        F.sort_array(F.collect_set("b")).alias("all"),
        F.sum("b").alias("total"),
        F.max("_sn").alias("_sn"),
    )
    return grouped.select("*", F.xxhash64("k").alias("h"), F.expr("transform(all, x -> x + 1)").alias("more"))


def python(df: Any) -> Any:
    return df.select(F.udf(lambda value: value)("value"))


def chance(df: Any) -> Any:
    return df.select(F.udf(lambda value: value).asNondeterministic()("value"))


ACCEPTED: list[tuple[str, Plan]] = [
    ("realtime", in_both),
    ("microbatch", in_both),
    (
        "realtime",
        by_key(
            lambda: F.first("value"), lambda: F.collect_list("value"), lambda: F.sum(text().cast("double"))
        ),
    ),
    ("realtime", lambda df: df.dropDuplicates(["key"])),
    ("realtime", lambda df: df.withColumn("c", df.key.cast("string")).groupBy("c").agg(F.max("_sn"))),
    ("microbatch", by_key(lambda: F.sum(text().cast("int")), lambda: F.avg(text().cast("decimal(9,2)")))),
    ("microbatch", by_key(lambda: F.sort_array(F.collect_list(F.struct("_sn", "value"))))),
    ("microbatch", by_key(lambda: F.max_by("value", "_sn"))),
    ("microbatch", windowed),
    ("microbatch", lambda df: df.dropDuplicates(["key", "value"])),
    ("microbatch", lambda df: df.select("value").dropDuplicates(["value"])),
    ("microbatch", python),
    ("microbatch", lambda df: df.groupBy(F.get_json_object(text(), "$.c")).count()),
    ("microbatch", lambda df: df.mapInPandas(lambda frames: frames, df.schema)),
]
REFUSED: list[tuple[str, str, Plan]] = [
    ("realtime", "CurrentTimestamp", lambda df: df.select(F.current_timestamp())),
    ("microbatch", "CurrentTimestamp", lambda df: df.select(F.unix_timestamp())),
    ("microbatch", "CurrentDate", lambda df: df.select(F.current_date())),
    ("microbatch", "Rand", lambda df: df.select(F.rand(7))),
    ("realtime", "Uuid", lambda df: df.select(F.expr("uuid()"))),
    ("realtime", "MonotonicallyIncreasingID", lambda df: df.select(F.monotonically_increasing_id())),
    ("realtime", "CollectSet", by_key(lambda: F.collect_set("value"))),
    ("microbatch", "CollectList", by_key(lambda: F.collect_list("value"))),
    ("microbatch", "First", by_key(lambda: F.first("value"))),
    ("microbatch", "MaxBy", by_key(lambda: F.max_by("value", "timestamp"))),
    ("microbatch", "Sum", by_key(lambda: F.sum(text().cast("double")))),
    ("microbatch", "StddevSamp", by_key(lambda: F.stddev(text().cast("int")))),
    ("microbatch", "Deduplicate", lambda df: df.dropDuplicates(["value"])),
    ("realtime", "PythonUDF", python),
    ("microbatch", "PythonUDF", chance),
    ("realtime", "EventTimeWatermark", windowed),
    ("realtime", "Repartition", lambda df: df.repartition(3)),
    ("microbatch", "GlobalLimit", lambda df: df.limit(3)),
    ("realtime", "SeveralShuffles", lambda df: df.groupBy("key").count().groupBy("key").count()),
    ("realtime", "GroupingKey", lambda df: df.groupBy(F.get_json_object(text(), "$.c")).count()),
    ("realtime", "GroupingKey", lambda df: df.groupBy(F.substring(text(), 1, 1)).count()),
]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    reader = (
        spark.readStream.format("lockstep")
        .option("topic", "t")
        .option("kafka.bootstrap.servers", "nowhere:1")
    )
    return reader.load()


@pytest.mark.parametrize(("kind", "plan"), ACCEPTED)
def test_a_plan_whose_outputs_cannot_differ_is_accepted(
    df: DataFrame, kind: guard.Engine, plan: Plan
) -> None:
    assert guard.check(plan(df), kind) == []


@pytest.mark.parametrize(
    ("kind", "name", "plan"), REFUSED, ids=[f"{kind}-{name}" for kind, name, _ in REFUSED]
)
def test_a_plan_whose_outputs_could_differ_is_refused_by_name(
    df: DataFrame, kind: guard.Engine, name: str, plan: Plan
) -> None:
    findings = guard.check(plan(df), kind)
    assert name in {finding.name for finding in findings}
    assert all(finding.what and finding.fix for finding in findings)
    allowed = guard.check(plan(df), kind, [finding.name for finding in findings])
    assert allowed == []


def test_a_finding_names_the_column_and_what_to_do(df: DataFrame) -> None:
    message = str(guard.refusal(guard.check(df.withColumn("seen_at", F.current_timestamp()), "realtime")))
    assert "current_timestamp() in column 'seen_at' reads the clock" in message
    assert "`timestamp`" in message
    assert "--allow CurrentTimestamp" in message


def test_with_one_partition_any_key_comes_from_one_shard(df: DataFrame) -> None:
    grouped = df.groupBy(F.get_json_object(text(), "$.c")).count()
    assert guard.check(grouped, "realtime", shards=1) == []


def test_it_is_known_whether_a_plan_relies_on_the_message_key(df: DataFrame) -> None:
    by_key = df.groupBy(F.col("key").cast("string")).count()
    assert guard.relies_on_key(by_key, "realtime")
    assert not guard.relies_on_key(by_key, "microbatch"), (
        "an aggregate does not mind where its rows come from"
    )
    assert not guard.relies_on_key(df.groupBy("key", "_shard").count(), "realtime")
    assert not guard.relies_on_key(df.select("key", "value"), "realtime")
    first = df.dropDuplicates(["key"])
    assert guard.relies_on_key(first, "realtime")
    assert guard.relies_on_key(first, "microbatch"), "which of several is the first is a matter of the shard"
    late = df.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["key"])
    assert guard.relies_on_key(late, "microbatch")
    assert not guard.relies_on_key(df.select("key", "value").dropDuplicates(), "microbatch"), "all are equal"


def test_other_sources_and_tables_are_refused(spark: SparkSession, df: DataFrame, tmp_path: Any) -> None:
    rate = spark.readStream.format("rate").load()
    assert [finding.name for finding in guard.check(rate, "microbatch")] == ["StreamingRelationV2"]
    spark.range(3).write.parquet(str(tmp_path / "table"))
    joined = df.join(spark.read.parquet(str(tmp_path / "table")), F.col("_sn") == F.col("id"))
    assert [finding.name for finding in guard.check(joined, "microbatch")] == ["LogicalRelation"]
    rows = spark.createDataFrame([("a", 1)], "name string, weight int")
    looked_up = df.join(F.broadcast(rows), F.col("key").cast("string") == F.col("name"))
    assert guard.check(looked_up, "realtime") == []


def test_auto_takes_real_time_where_it_can_and_says_why_not(df: DataFrame) -> None:
    assert engine.choose(in_both(df), "auto")[0] == "realtime"
    chosen, why = engine.choose(windowed(df), "auto")
    assert chosen == "microbatch"
    assert "watermark" in why
    with pytest.raises(UsageError, match="watermark"):
        engine.choose(windowed(df), "realtime")
