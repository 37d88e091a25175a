"""Start a pipeline as a streaming query, in the real-time or in the micro-batch engine.

Real time: a long-running batch that emits each output at once; for stateless plans and aggregations. Micro-batch:
any operator of Spark; batches end at sealed positions, so that they are equal on all sites (design rule 11).
"""

import dataclasses
import importlib.util
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from lockstep.errors import LockstepError, UsageError
from lockstep.spark import guard
from lockstep.spark.pipeline import Pipeline
from lockstep.spark.position import committed
from lockstep.spark.session import first_line

Engine = Literal["realtime", "microbatch"]
Requested = Literal["realtime", "microbatch", "auto"]

REALTIME_BATCH_MS = 60_000
"""Long: each boundary stalls a site for some 200 ms, which only the other sites hide."""
MICROBATCH_MS = 500
WARM_UP_FROM_MS = 20_000
"""Batches that are shorter come to their first boundaries soon enough by themselves."""
_WARM_UP_BATCH_MS = 500
_WARM_UP_BATCHES = 8
_WARM_UP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_IDLE_SEALS = 2
"""Batches after the last input: the watermark passes in one, what it closed comes out in the next."""


@dataclass(frozen=True)
class EngineSettings:
    """`seals` is the run's topic of origin, seals and skips; `batch_ms` 0 means the engine's own default.

    `order_places` names for each input the order topic and the partition of its first shard, `topic:partition`; it
    is empty under order `partition`. `stage_topics` are those inputs that sites write to.
    `origins`: where each topic's partitions begin for this run, if it is fixed already.
    """

    engine: Engine
    bootstrap_servers: str
    checkpoint: Path
    site: str
    output_partitions: int
    input_partitions: Mapping[str, int]
    seals: str
    order: str = "partition"
    order_places: Sequence[str] = ()
    stage_topics: Collection[str] = ()
    origins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    kafka_options: Mapping[str, str] = field(default_factory=dict)
    batch_ms: int = 0
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_records_per_batch: int = 1_000_000
    last_words: Path | None = None
    allow: Sequence[str] = ()

    @property
    def batch_length_ms(self) -> int:
        return self.batch_ms or (REALTIME_BATCH_MS if self.engine == "realtime" else MICROBATCH_MS)


@dataclass(frozen=True)
class Progress:
    """How far this JVM is. Spark's own progress comes only at the end of a batch."""

    batch: int
    phase_ms: int
    positions: dict[str, dict[int, int]]
    lag: int | None
    """Records before the ends of the inputs; None as long as a reader does not know its own."""


@dataclass(frozen=True)
class Suspect:
    """An input record that may be what no site can process: see `seals.skip`."""

    topic: str
    shard: int
    offset: int
    reason: str


def plan(
    spark: SparkSession, pipeline: Pipeline, settings: EngineSettings, **source_options: Any
) -> DataFrame:
    """The user's output as a streaming DataFrame, before it is fitted to the sink."""
    inputs = [
        _source(spark, number, pipeline, settings).options(**source_options).load()
        for number in range(len(pipeline.inputs))
    ]
    try:
        output = pipeline(*inputs)
    except (PySparkException, UsageError):
        raise
    except Exception as error:
        raise UsageError(
            f"pipeline {pipeline.name} raises {type(error).__name__}: {first_line(error)}",
            hint="run it on static DataFrames first: Pipeline.on_static",
        ) from error
    if not isinstance(output, DataFrame) or not output.isStreaming:
        raise UsageError(
            f"pipeline {pipeline.name} returns no streaming DataFrame",
            hint="return what you made from the inputs",
        )
    return output


def choose(
    dataframe: DataFrame,
    requested: Requested,
    allow: Sequence[str] = (),
    *,
    shards: int | None = None,
    broadcast: bool = False,
) -> tuple[Engine, str]:
    """The engine for a plan and one line that says why. Refuses what the requested engine cannot run."""
    if requested == "microbatch":
        return "microbatch", "as requested"
    findings = guard.check(dataframe, "realtime", allow, shards=shards, broadcast=broadcast)
    if not findings:
        return (
            "realtime",
            "as requested" if requested == "realtime" else "every operator of the plan runs in real time",
        )
    if requested == "realtime":
        raise guard.refusal(findings)
    return "microbatch", f"{findings[0].what}: not in real time"


def start(spark: SparkSession, pipeline: Pipeline, settings: EngineSettings) -> StreamingQuery:
    """Start the query. It fails later through `StreamingQuery.exception()`: see `failure`."""
    return begin(spark, prepare(spark, pipeline, settings))


def prepare(spark: SparkSession, pipeline: Pipeline, settings: EngineSettings) -> DataStreamWriter:
    """All that can be done before the query begins: half of the time that a start takes."""
    output = plan(spark, pipeline, settings)
    shards = shard_count(pipeline, settings.input_partitions)
    broadcast = any(group.has_broadcast for group in pipeline.groups)
    findings = guard.check(output, settings.engine, settings.allow, shards=shards, broadcast=broadcast)
    if findings:
        raise guard.refusal(findings)
    if guard.has_operator(output, "TransformWithStateInPySpark"):
        _require_protobuf()
    options: dict[str, Any] = {}
    if settings.engine == "microbatch" and guard.has_operator(output, "EventTimeWatermark"):
        options["idleSeals"] = _IDLE_SEALS
    if shards > 1 and guard.relies_on_key(output, settings.engine):
        options["keyed"] = True
    if options:
        output = plan(spark, pipeline, settings, **options)
    rows = fit(output, pipeline.key, settings.engine, shards)
    writer = (
        rows.writeStream.format("lockstep")
        .queryName(f"{pipeline.name}-{settings.site}")
        .option("topic", pipeline.output)
        .option("partitions", settings.output_partitions)
        .option("site", settings.site)
        .option("engine", settings.engine)
        .option("stage", pipeline.output in settings.stage_topics)
        .option("lastWords", str(settings.last_words or ""))
        .option("checkpointLocation", str(settings.checkpoint))
        .options(**_kafka(pipeline, settings))
    )
    if settings.engine == "realtime":
        writer = writer.outputMode("update").trigger(realTime=f"{settings.batch_length_ms} milliseconds")
    else:
        writer = writer.outputMode(pipeline.output_mode or _output_mode(output)).trigger(
            processingTime="0 seconds"
        )
    return writer


def begin(spark: SparkSession, writer: DataStreamWriter) -> StreamingQuery:
    try:
        return writer.start()
    except PySparkException as error:
        raise failure(error, spark) from error


def wants_warm_up(settings: EngineSettings) -> bool:
    return settings.engine == "realtime" and settings.batch_length_ms >= WARM_UP_FROM_MS


def warm_up(spark: SparkSession, stages: Sequence[tuple[Pipeline, EngineSettings]]) -> None:
    """Run the queries for a few short batches, and stop them.

    All that happens at a boundary (commit, planning, start of tasks) is slow the first times: a second and more,
    against some 200 ms later. With long batches those first times would come a minute after the start, and show in
    the output whenever no other site is there to hide them. What is written meanwhile counts as any other output.
    """
    before = [_batches_committed(settings) for _, settings in stages]
    short = [(one, dataclasses.replace(how, batch_ms=_WARM_UP_BATCH_MS)) for one, how in stages]
    queries = [start(spark, pipeline, settings) for pipeline, settings in short]
    deadline = time.monotonic() + _WARM_UP_SECONDS
    try:
        while all(query.isActive for query in queries) and time.monotonic() < deadline:
            done = [_batches_committed(settings) for _, settings in stages]
            if all(now >= then + _WARM_UP_BATCHES for then, now in zip(before, done, strict=True)):
                break
            time.sleep(_POLL_SECONDS)
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
    finally:
        stop(spark, queries)


def stop(spark: SparkSession, queries: Sequence[StreamingQuery]) -> None:
    """Stop queries that will be started again in this session; their checkpoints say where they go on."""
    for query in queries:
        query.stop()
    spark.streams.resetTerminated()  # else whoever waits for any query would be told of these


def shard_count(pipeline: Pipeline, partitions: Mapping[str, int]) -> int:
    """How many shards all inputs of a pipeline have together."""
    return sum(group.shards(partitions) for group in pipeline.groups)


def progress(spark: SparkSession, now_ms: int, shards: int = 0) -> Progress:
    """Readable at any time, also within a batch; `shards` have to be known for a lag. Local Spark only."""
    state = json.loads(spark._jvm.io.lockstep.Progress.json())
    positions = {
        topic: {int(shard): at for shard, (at, _) in shards.items()}
        for topic, shards in state["topics"].items()
    }
    behind = [behind for shards in state["topics"].values() for _, behind in shards.values()]
    known = len(behind) >= max(1, shards) and min(behind) >= 0
    began = state["batch_began"]
    phase = max(0, now_ms - began) if began else 0
    return Progress(state["batch"], phase, positions, sum(behind) if known else None)


def boundary_ms(query: StreamingQuery, settings: EngineSettings) -> int | None:
    """How much longer than planned the query's last real-time batch took: commit, planning, start of tasks."""
    if settings.engine != "realtime" or (last := query.lastProgress) is None:
        return None
    return max(0, int(last["durationMs"]["triggerExecution"]) - settings.batch_length_ms)


def suspect(spark: SparkSession) -> Suspect | None:
    """The record that the last failed task had in hand, or None. Local Spark only; it means nothing where the plan
    `reads_ahead`."""
    text = spark._jvm.io.lockstep.Suspect.json()
    return Suspect(**json.loads(text)) if text else None


def reads_ahead(spark: SparkSession, pipeline: Pipeline, settings: EngineSettings) -> bool:
    """Whether the record in hand of a failed task says nothing (`guard.reads_ahead`)."""
    return settings.engine == "microbatch" and guard.reads_ahead(plan(spark, pipeline, settings))


def failure(error: BaseException, spark: SparkSession | None = None) -> LockstepError:
    """What a person should read of a failed query: our own words if they are in it, else Spark's first line.

    With the session: the words of the task that failed first, where the query ended with those of another.
    """
    text = str(error)
    if spark is not None and (lost := _LOST_WRITER.search(text)):
        text = spark._jvm.io.lockstep.TaskFailures.of(int(lost["task"]), _TOLD_MS) or text
    if found := _OUR_WORDS.search(text):
        return LockstepError(found["what"].strip(), hint=found["hint"].strip())
    causes = [line.strip() for line in text.splitlines() if _CAUSE.match(line.strip())]
    return LockstepError(f"the query failed: {(causes or [first_line(error)])[-1][:500]}")


def fit(output: DataFrame, key: str | None, engine: Engine, shards: int) -> DataFrame:
    """The rows as the sink takes them: `key` and `value` binary, and what names the row's cause."""
    columns = output.columns
    if engine == "realtime":
        _require_cause(columns, shards)
    if key is not None and key not in columns:
        raise UsageError(
            f"the output has no column {key!r}, which is declared as its key", hint=f"it has {columns}"
        )
    key_column = key or ("key" if "key" in columns else None)
    fields = [column for column in columns if column not in ("_sn", "_shard")]
    if not fields:
        raise UsageError("the output has no column besides _sn and _shard", hint="return a value")
    if "value" in columns and set(fields) <= {"key", "value", key}:
        value = _binary(output, "value")
    else:
        value = f.to_json(f.struct(*(f.col(f"`{field}`") for field in fields)), {"ignoreNullFields": "false"})
        value = value.cast("binary")
    selected = [value.alias("value")]
    if key_column is not None:
        selected.append(_binary(output, key_column).alias("key"))
    if "_sn" in columns:
        selected.append(f.col("_sn").cast("bigint").alias("_sn"))
    if "_shard" in columns:
        selected.append(f.col("_shard").cast("int").alias("_shard"))
    elif engine == "realtime":
        selected.append(f.lit(0).alias("_shard"))
    return output.select(*selected)


_OUR_WORDS = re.compile(r"lockstep says: (?P<what>.*?) \| (?P<hint>.*?) \|", re.DOTALL)
_LOST_WRITER = re.compile(r"shuffle writer (with id )?(?P<task>\d+) (closed before termination|and location)")
_TOLD_MS = 2_000
_CAUSE = re.compile(r"(Caused by: )?[\w.$]+(Exception|Error)\b")


def _require_cause(columns: Sequence[str], shards: int) -> None:
    if "_sn" not in columns:
        raise UsageError(
            "the output has no column _sn",
            hint='keep the input\'s _sn; in an aggregation add F.max("_sn").alias("_sn")',
        )
    if "_shard" not in columns and shards > 1:
        raise UsageError(
            "the output has no column _shard, and the input has several partitions",
            hint='keep the input\'s _shard; in an aggregation add F.max("_shard").alias("_shard")',
        )


def _binary(output: DataFrame, column: str) -> Any:
    kind = output.schema[column].dataType.simpleString()
    expression = f.col(f"`{column}`")
    if kind == "binary":
        return expression
    if kind.startswith(("struct", "array", "map")):
        return f.to_json(expression).cast("binary")
    return expression.cast("string").cast("binary")


def _source(
    spark: SparkSession, number: int, pipeline: Pipeline, settings: EngineSettings
) -> DataStreamReader:
    specs = [group.spec(settings.stage_topics) for group in pipeline.groups]
    reader = (
        spark.readStream.format("lockstep")
        .option("topic", specs[number])
        .option("inputs", ",".join(specs))
        .option("order", settings.order)
        .option("seals", settings.seals)
        .option("site", settings.site)
        .option("startingOffsets", settings.starting_offsets)
        .option("maxRecordsPerSeal", settings.max_records_per_batch)
        .options(**_kafka(pipeline, settings))
    )
    if settings.order_places:
        reader = reader.option("orderTopic", settings.order_places[number])
        reader = reader.option("orderTopics", ",".join(settings.order_places))
    if settings.origins:
        reader = reader.option("origin", json.dumps({t: list(o) for t, o in settings.origins.items()}))
    return reader


def _kafka(pipeline: Pipeline, settings: EngineSettings) -> dict[str, str]:
    options = {**pipeline.kafka_options, **settings.kafka_options}
    options["bootstrap.servers"] = settings.bootstrap_servers
    return {f"kafka.{name}": value for name, value in options.items()}


def _batches_committed(settings: EngineSettings) -> int:
    """The number of the last committed batch, or -1."""
    found = committed(settings.checkpoint)
    return -1 if found is None else found[0]


def _require_protobuf() -> None:
    """Spark's Python workers talk to their state through it; without it they die with a bare ImportError."""
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.protobuf") is None:
        raise UsageError("transformWithState needs the Python package protobuf", hint="pip install protobuf")


def _output_mode(output: DataFrame) -> str:
    """Append where the plan allows it: with a watermark a window is emitted once, when it is closed."""
    jvm = output.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        checker.checkForStreaming(output._jdf.queryExecution().analyzed(), append)
    except PySparkException:
        return "update"
    return "append"
