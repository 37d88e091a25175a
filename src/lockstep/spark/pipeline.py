"""What a user writes: a function from input DataFrames to an output DataFrame, and its declaration.

    @lockstep.pipeline(inputs=["payments"], output="alerts", key="customer")
    def alerts(payments: DataFrame) -> DataFrame: ...

Each input has the columns of Spark's Kafka source and `_shard`, `_sn`: the record's place in the order. The
function stays ordinary PySpark: `Pipeline.on_static` runs it on static DataFrames in a unit test.
"""

import hashlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.order.graph import Stage, check_acyclic
from lockstep.spark.inputs import DECLARATION, Broadcast, Input, check_topic

Function = Callable[..., Any]


@dataclass(frozen=True)
class Pipeline:
    """A declared pipeline. Calling it calls the function."""

    function: Function
    inputs: tuple[str, ...]
    """The names of its inputs: a topic, or several that are merged, as `a+b+c!` (see `inputs.py`)."""
    output: str
    key: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    @property
    def groups(self) -> tuple[Input, ...]:
        return tuple(Input.parse(name) for name in self.inputs)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that it reads."""
        return tuple(topic for group in self.groups for topic in group.topics)

    @property
    def spark_options(self) -> dict[str, str]:
        """Those for the Spark session, by Spark's own names."""
        return {name: value for name, value in self.options.items() if name.startswith("spark.")}

    @property
    def kafka_options(self) -> dict[str, str]:
        """Those for Kafka's Java clients, by Kafka's own names (without `kafka.`)."""
        return {name[6:]: value for name, value in self.options.items() if name.startswith("kafka.")}

    @property
    def output_mode(self) -> str:
        """`append` or `update` where the user chose one; it matters in micro-batch alone."""
        return self.options.get("outputMode", "")

    @property
    def fingerprint(self) -> str:
        """A hash of the declaration and the function: another one must not go on with this one's checkpoint."""
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):
            source = ""
        declared = [list(self.inputs), self.output, self.key, sorted(self.options.items()), source]
        return hashlib.sha256(json.dumps(declared).encode()).hexdigest()

    def on_static(self, dataframes: Mapping[str, Any] | None = None, **by_name: Any) -> Any:
        """The function's output for static DataFrames, one for each input, for unit tests.

        Columns of the source that a DataFrame lacks are added: rows are numbered in `_sn` as they come, and
        columns that the source does not have become fields of a JSON `value`.
        """
        given = {**(dataframes or {}), **by_name}
        for group in self.groups:  # a merged input may be given under the name of its first topic
            if group.name not in given and group.topics[0] in given:
                given[group.name] = given.pop(group.topics[0])
        if missing := [topic for topic in self.inputs if topic not in given]:
            raise UsageError(f"no DataFrame for input {missing[0]!r}", hint=f"give {', '.join(self.inputs)}")
        if extra := [topic for topic in given if topic not in self.inputs]:
            raise UsageError(
                f"{extra[0]!r} is no input of this pipeline", hint=f"give {', '.join(self.inputs)}"
            )
        return self.function(*(as_input(given[one.name], one.topics[0]) for one in self.groups))


def pipeline(
    *,
    inputs: Sequence[str | Sequence[str | Broadcast]],
    output: str,
    key: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Callable[[Function], Pipeline]:
    """Declare a function as a pipeline.

    `inputs`: for each DataFrame a topic, or a tuple of topics that are merged into one order (`inputs.py`).
    `key`: the output column that becomes the Kafka key. `options`: `spark.*` for the session, `kafka.*` for
    Kafka's clients and `outputMode` for micro-batches, by their own names.
    """
    if isinstance(inputs, str) or not inputs:
        raise UsageError("a pipeline needs a list of input topics", hint=DECLARATION)
    groups = [Input.declare(declared) for declared in inputs]
    topics = [topic for group in groups for topic in group.topics]
    check_topic(output)
    if len(set(topics)) != len(topics):
        raise UsageError("an input topic is named twice", hint="use the one DataFrame twice")
    if output in topics:
        raise UsageError(f"{output!r} is both input and output", hint="write to another topic")
    for option in options or {}:
        if not option.startswith(("spark.", "kafka.")) and option != "outputMode":
            raise UsageError(f"unknown option {option!r}", hint="options begin with spark. or kafka.")
    texts = {option: _text(value) for option, value in (options or {}).items()}
    if texts.get("outputMode", "update") not in ("append", "update"):
        raise UsageError(f"outputMode is {texts['outputMode']!r}", hint="use append or update")

    def declare(function: Function) -> Pipeline:
        if not callable(function):
            raise UsageError("a pipeline is a function", hint=DECLARATION)
        _accepts(function, len(inputs))
        return Pipeline(
            function, tuple(group.name for group in groups), output, key, texts, name or function.__name__
        )

    return declare


def load(file: str | Path) -> Pipeline:
    """The pipeline that a Python file declares; `FILE:NAME` picks one of several."""
    return load_stages(file)[-1]


def load_stages(file: str | Path) -> tuple[Pipeline, ...]:
    """The stages that a Python file declares, each after those whose output it reads. `FILE:NAME` picks one.

    Several pipelines in a file are the stages of one if each but the last is read by another.
    """
    path_text, _, wanted = str(file).partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="give the path of a Python file with a pipeline")
    found = [value for value in vars(_run(path)).values() if isinstance(value, Pipeline)]
    if wanted:
        found = [one for one in found if one.name == wanted]
    if not found:
        called = f" called {wanted}" if wanted else ""
        raise UsageError(f"{path} declares no pipeline{called}", hint=DECLARATION)
    return in_order(found, path)


def in_order(stages: Sequence[Pipeline], path: Path) -> tuple[Pipeline, ...]:
    """The stages in the order of their data flow, the one whose output nobody reads last."""
    by_name = {one.name: one for one in stages}
    graph = [Stage(one.name, one.topics, (one.output,)) for one in stages]
    ordered = tuple(by_name[stage.name] for stage in check_acyclic(graph))
    read = {topic for one in ordered for topic in one.topics}
    ends = [one.name for one in ordered if one.output not in read]
    if len(ends) > 1:
        names = ", ".join(f"{path}:{one}" for one in ends)
        raise UsageError(
            f"{path} declares {len(ends)} pipelines that are not stages of one", hint=f"pick one: {names}"
        )
    if len({one.output for one in ordered}) < len(ordered):
        raise UsageError("two stages write to one topic", hint="give each a topic of its own")
    return (*(one for one in ordered if one.name != ends[0]), by_name[ends[0]])


def as_input(dataframe: Any, topic: str) -> Any:
    """A static DataFrame with all columns of the source, in the source's order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    own = [column for column in dataframe.columns if column not in _SOURCE_COLUMNS]
    if "value" not in dataframe.columns:
        dataframe = dataframe.withColumn("value", f.to_json(f.struct(*own)) if own else f.lit(None))
    if "_sn" not in dataframe.columns:
        as_they_come = Window.partitionBy(f.lit(0)).orderBy(f.monotonically_increasing_id())
        number = f.col("offset") if "offset" in dataframe.columns else f.row_number().over(as_they_come) - 1
        dataframe = dataframe.withColumn("_sn", number)
    filled = {
        "topic": f.lit(topic),
        "partition": f.lit(0),
        "offset": f.col("_sn"),
        "timestamp": f.lit(0).cast("timestamp"),
        "timestampType": f.lit(0),
        "_shard": f.lit(0),
    }
    return dataframe.select(
        *(
            (f.col(column) if column in dataframe.columns else filled.get(column, f.lit(None)))
            .cast(kind)
            .alias(column)
            for column, kind in _SOURCE_COLUMNS.items()
        )
    )


_SOURCE_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "_shard": "int",
    "_sn": "bigint",
}


def _run(path: Path) -> Any:
    from pyspark import cloudpickle

    name = f"lockstep_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file", hint="its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _reach_neighbours(str(path.resolve().parent))
    cloudpickle.register_pickle_by_value(module)  # Python workers do not know it by this name
    try:
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}", hint="correct the file") from error
    except Exception as error:
        raise UsageError(f"{path} raises {type(error).__name__}: {error}", hint="correct the file") from error
    return module


def _reach_neighbours(folder: str) -> None:
    """As if the file were run: modules beside it can be imported, here and in Spark's Python workers."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, known)])


def _accepts(function: Function, count: int) -> None:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        raise UsageError(
            f"{function.__name__} has to take {count} DataFrame{'s' if count > 1 else ''}, one for each input",
            hint="give it one parameter for each input topic",
        ) from None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
