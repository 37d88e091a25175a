"""The determinism guard: refuse a plan before it starts when sites could give different outputs.

It reads the analyzed plan and looks every operator and expression up in `expressions` (design rules 9 to 11). A
finding names the column and says what to do; `--allow NAME` overrides one named class where the user knows better.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame

from lockstep.errors import UsageError
from lockstep.spark import expressions as table

Engine = Literal["realtime", "microbatch"]

_SHOWN = 8
_EXPRESSION_IDS = re.compile(r"#\d+L?(-T\d+ms)?")
_MOST_NODES = 100_000
_PARTITION_COLUMNS = frozenset(("_shard", "partition"))
_SHARD_COLUMNS = _PARTITION_COLUMNS | {"key"}
_SHARD_ITSELF = frozenset(("_shard",))


@dataclass(frozen=True)
class Finding:
    """One reason why a plan cannot run in an engine. `name` is what `--allow` takes."""

    name: str
    what: str
    fix: str


def check(
    dataframe: DataFrame,
    engine: Engine,
    allow: Collection[str] = (),
    *,
    shards: int | None = None,
    broadcast: bool = False,
) -> list[Finding]:
    """All that speaks against the plan, or an empty list.

    `shards`: of the input, where known. `broadcast`: whether every shard reads a topic of it; then the rows of one
    message key come from all of them.
    """
    if not hasattr(dataframe, "_jdf"):
        raise UsageError("Spark Connect does not show its plans", hint="use a classic SparkSession")
    plan = dataframe._jdf.queryExecution().analyzed()
    allowed = {name.lower() for name in allow}
    found = {
        finding: None
        for finding in [
            *_operators(plan, engine),
            *_expressions(plan, engine),
            *_shape(plan, engine, shards, broadcast),
        ]
        if finding.name.lower() not in allowed
    }
    return list(found)


def refusal(findings: Sequence[Finding]) -> UsageError:
    """The findings as an error that a person can act on."""
    shown = findings[:_SHOWN]
    lines = [f"{finding.what}; {finding.fix} (--allow {finding.name})" for finding in shown]
    if len(findings) > len(shown):
        lines.append(f"and {len(findings) - len(shown)} more")
    count = "one thing" if len(findings) == 1 else f"{len(findings)} things"
    return UsageError(
        f"sites could differ in {count}:\n  " + "\n  ".join(lines),
        hint="change the pipeline; --allow NAME if you know that it cannot differ",
    )


def relies_on_key(dataframe: DataFrame, engine: Engine) -> bool:
    """Whether sites agree only if all rows of one message key come from one shard.

    Those of no key do not, as Kafka spreads them: then the source has to refuse them.
    """
    plan = dataframe._jdf.queryExecution().analyzed()
    nodes = list(_nodes(plan))
    minding = _choosing(nodes) if engine == "microbatch" else _shuffling(nodes)
    return any(
        any(_comes_from_shard(key, plan, ("key",)) for key in _keys(node))
        and not any(_comes_from_shard(key, plan, _PARTITION_COLUMNS) for key in _keys(node))
        for node in minding
    )


def has_operator(dataframe: DataFrame, name: str) -> bool:
    return any(_name(node) == name for node in _nodes(dataframe._jdf.queryExecution().analyzed()))


def reads_ahead(dataframe: DataFrame) -> bool:
    """Whether Python code is in the plan: it gets rows in bundles, so a reader is ahead of what it works on."""
    for node in _nodes(dataframe._jdf.queryExecution().analyzed()):
        if any(word in _name(node) for word in ("Python", "PySpark", "Pandas", "Arrow")):
            return True
        if any(
            _name(part) in table.PYTHON_CODE for one in _sequence(node.expressions()) for part in _nodes(one)
        ):
            return True
    return False


def _operators(plan: Any, engine: Engine) -> Iterator[Finding]:
    known = table.REALTIME_OPERATORS if engine == "realtime" else table.MICROBATCH_OPERATORS
    for node in _nodes(plan):
        name = _name(node)
        if name == "Join" and engine == "realtime" and _streaming_children(node) == 1:
            yield from _broadcast(node)
            continue
        if name in table.STATIC_TABLES:
            yield Finding(
                name,
                f"the plan reads {_short(node)}, which can differ between sites or change between batches",
                "put the rows into the plan (spark.createDataFrame) or into a topic",
            )
        elif name not in known:
            yield _operator_finding(name, engine)
        elif name.startswith("StreamingRelation") and node.sourceName() != "lockstep":
            yield Finding(
                name, f"the plan reads {node.sourceName()}", "read the inputs that the function is given"
            )
        elif name in (
            "FlatMapGroupsInPandasWithState",
            "TransformWithStateInPySpark",
            "TransformWithStateInPandas",
        ):
            yield from _timers(node, name)


def _operator_finding(name: str, engine: Engine) -> Finding:
    if engine == "microbatch":
        return Finding(name, f"operator {name} is not known to give equal results", "write it another way")
    if name == "EventTimeWatermark":
        return Finding(
            name,
            "a watermark moves at the end of a batch, which the clock decides",
            "use --engine microbatch",
        )
    if name in table.MICROBATCH_OPERATORS:
        return Finding(name, f"operator {name} does not run in real time", "use --engine microbatch")
    return Finding(name, f"operator {name} is not known to give equal results", "write it another way")


def _broadcast(join: Any) -> Iterator[Finding]:
    """A join with static rows is a look-up, unless Spark shuffles the stream for it."""
    if not any(_name(child) == "ResolvedHint" for child in _sequence(join.children())):
        yield Finding("Join", "a join with static rows needs them broadcast", "wrap them in F.broadcast(...)")


def _timers(node: Any, name: str) -> Iterator[Finding]:
    """Processing-time timers and TTL fire by the clock."""
    mode = str(node.timeMode() if name.startswith("Transform") else node.timeout())
    if "ProcessingTime" in mode:
        yield Finding(name, f"{name} has timers in processing time", "use event time (timeMode EventTime)")


def _expressions(plan: Any, engine: Engine) -> Iterator[Finding]:
    for node in _nodes(plan):
        for expression in _sequence(node.expressions()):
            column = str(expression.name()) if _name(expression) == "Alias" else ""
            yield from _expression(expression, engine, column, removes_order=False)


def _expression(expression: Any, engine: Engine, column: str, *, removes_order: bool) -> Iterator[Finding]:
    name = _name(expression)
    where = f"{_short(expression)} in column {column!r}" if column else _short(expression)
    if name in table.CLOCK_OR_CHANCE:
        why, fix = table.CLOCK_OR_CHANCE[name]
        yield Finding(name, f"{where} {why}", fix)
    elif name in table.PYTHON_CODE:
        yield from _python(expression, engine, where, name)
    elif name in table.UNORDERED_SET:
        if not removes_order:
            yield Finding(name, f"{where} gives its elements in no fixed order", "wrap it in sort_array(...)")
    elif name in table.ORDER_SENSITIVE:
        if engine == "microbatch" and not removes_order:
            fix = "use max_by(x, _sn) or min_by(x, _sn), or sort_array(collect_list(struct(_sn, x)))"
            yield Finding(name, f"{where} depends on the order of rows, which a shuffle does not keep", fix)
    elif name in table.TIES:
        if engine == "microbatch" and not _refers_to(expression.children().apply(1), "_sn"):
            yield Finding(
                name, f"{where} picks any of equals", "order by struct(x, _sn), which has no equals"
            )
    elif name in table.FLOATING:
        exact = name in table.EXACT_IF_EXACT and not _is_floating(expression.children().apply(0))
        if engine == "microbatch" and not exact:
            yield Finding(
                name, f"{where} adds floating-point numbers in no fixed order", "cast to decimal first"
            )
    elif name not in table.PURE:
        yield Finding(name, f"{where} is not known to give equal results", "write it another way")
    inner = (
        removes_order if name in ("AggregateExpression", "Cast", "Alias") else name in table.ORDER_REMOVERS
    )
    for child in _sequence(expression.children()):
        yield from _expression(child, engine, column, removes_order=inner)


def _python(expression: Any, engine: Engine, where: str, name: str) -> Iterator[Finding]:
    if engine == "realtime":
        yield Finding(
            name, f"{where} is Python code, which does not run in real time", "use --engine microbatch"
        )
    elif not expression.udfDeterministic():
        yield Finding(
            name, f"{where} is declared as not deterministic", "make it a function of its arguments"
        )


def _shape(plan: Any, engine: Engine, shards: int | None, broadcast: bool) -> Iterator[Finding]:
    """Rule 10: one input in order, at most one shuffle, and a key's rows all in one shard."""
    nodes = list(_nodes(plan))
    if engine == "microbatch":
        yield from _first_of_equals(nodes, plan)
        return
    sources = sum(_name(node).startswith("StreamingRelation") for node in nodes)
    if sources > 1:
        yield Finding(
            "SeveralInputs",
            f"{sources} inputs have no common order",
            'merge them into one, inputs=[("a", "b")], or use --engine microbatch',
        )
    shuffles = _shuffling(nodes)
    if len(shuffles) > 1:
        yield Finding(
            "SeveralShuffles",
            f"the plan shuffles {len(shuffles)} times",
            "use --engine microbatch, or several stages",
        )
    if shards == 1:
        return
    for node in shuffles:
        keys = _keys(node)
        names = _SHARD_ITSELF if broadcast else _SHARD_COLUMNS
        if not any(_comes_from_shard(key, plan, names) for key in keys):
            yield Finding(
                "GroupingKey",
                f"the rows of one {', '.join(map(_short, keys)) or 'group'} could come from several partitions",
                "group by _shard, among others: every shard sees the broadcast topic"
                if broadcast
                else "group by the message key (the column key, cast as you like), among others",
            )


def _first_of_equals(nodes: Sequence[Any], plan: Any) -> Iterator[Finding]:
    """In a micro-batch it is the shuffle that decides which of several equal rows comes first."""
    for node in _choosing(nodes):
        keys = _keys(node)
        if not any(_comes_from_shard(key, plan) for key in keys):
            yield Finding(
                _name(node),
                f"dropDuplicates by {', '.join(map(_short, keys))} keeps any one of equal rows",
                "add the message key to its columns, or use groupBy with min_by(struct(...), _sn)",
            )


def _shuffling(nodes: Sequence[Any]) -> list[Any]:
    return [node for node in nodes if _name(node) in table.SHUFFLING]


def _choosing(nodes: Sequence[Any]) -> list[Any]:
    """Those that keep one of several rows which are equal in some columns only."""
    found = [node for node in nodes if _name(node).startswith("Deduplicate")]
    return [node for node in found if len(_keys(node)) < node.output().size()]


def _keys(node: Any) -> list[Any]:
    """What an operator that shuffles brings together."""
    return list(_sequence(node.groupingExpressions() if _name(node) == "Aggregate" else node.keys()))


def _comes_from_shard(expression: Any, plan: Any, names: Collection[str] = _SHARD_COLUMNS) -> bool:
    """Whether it is the message key, or the partition itself, at most renamed or re-encoded."""
    name = _name(expression)
    if name == "AttributeReference":
        definition = _definition(plan, expression.exprId().id())
        if definition is not None:
            return _comes_from_shard(definition, plan, names)
        return str(expression.name()) in names
    if name not in table.INJECTIVE:
        return False
    children = [child for child in _sequence(expression.children()) if _name(child) != "Literal"]
    return len(children) == 1 and _comes_from_shard(children[0], plan, names)


def _definition(plan: Any, expression_id: int) -> Any:
    for node in _nodes(plan):
        for expression in _sequence(node.expressions()):
            if _name(expression) == "Alias" and expression.exprId().id() == expression_id:
                return expression
    return None


def _refers_to(expression: Any, column: str) -> bool:
    if _name(expression) == "AttributeReference" and str(expression.name()) == column:
        return True
    return any(_refers_to(child, column) for child in _sequence(expression.children()))


def _is_floating(expression: Any) -> bool:
    return str(expression.dataType().typeName()) in ("double", "float")


def _streaming_children(node: Any) -> int:
    return sum(bool(child.isStreaming()) for child in _sequence(node.children()))


def _nodes(plan: Any) -> Iterator[Any]:
    left = [plan]
    for _ in range(_MOST_NODES):
        if not left:
            return
        node = left.pop()
        yield node
        left.extend(reversed(list(_sequence(node.children()))))
    raise UsageError("the plan is too large to check", hint="split the pipeline into stages")


def _sequence(scala: Any) -> Iterator[Any]:
    for index in range(scala.size()):
        yield scala.apply(index)


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName()).rstrip("$")


def _short(node: Any) -> str:
    text = _EXPRESSION_IDS.sub("", " ".join(str(node.toString()).split()))
    return text if len(text) <= 60 else text[:57] + "..."
