"""The BetterCloud dataflow for the real-time engine: rules that change, events that are checked against them.

Section VII-C and Fig. 15 of the active-replication paper. Events of customers and control events, which install
rules, arrive as one merged input. In it:

    filter + unwrap  ->  rules of the event's customer   \
                                                          union -> Qualifier -> Counter
                     ->  rules for everybody (broadcast) /

- A control event names a customer, or `EVERYBODY`. Of those with one alert id the **first** counts for a customer,
  the **last** for everybody.
- An event raises an alert for each control event in force all of whose rules it meets (the Qualifier).
- The Counter numbers the alerts of each customer and alert id.

Both joins are one keyed aggregation over the merged input, in the order that all sites agree on. Its group is a
**bucket** of customers, because a rule for everybody has to reach every group, and customers are not known
beforehand: such a control event is copied to all buckets. In real time an aggregation gives a row for each input,
so what follows it sees the event and the rules in force at that very place of the order.

The Counter is a stage of its own: an aggregate cannot count what depends on another aggregate of its own group.
`batches.py` does all of it in one stage, for micro-batches.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

EVERYBODY = "deadbeef-dead-beef-dead-beefdeadbeef"
CONTROLS = "control-events"
BUCKETS = 64
"""Few customers share a state; a rule for everybody costs as many rows."""
ONE_REDUCER = {"spark.sql.shuffle.partitions": "1"}
"""Enough for the rates here: each more is a task that, in real time, runs all the time. In micro-batches a shard
is one group, so a second one would have nothing to do."""

EVENT = "customerId STRING, payload STRING, ingestedAt LONG, receivedAt LONG"
RULES = "ARRAY<STRUCT<path: STRING, check: STRING, value: STRING>>"
CONTROL = f"rules {RULES}, customerId STRING, alertId STRING, alertName STRING, alertDescription STRING, " + (
    "threshold INT, bootstrapCustomerId STRING, createdAt LONG"
)
QUALIFIED = (
    "customerId STRING, alertId STRING, alertName STRING, scope STRING, payload STRING, ingestedAt LONG, "
    "shard INT, sn LONG, rank INT"
)
PATH = r"\A\$(\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]{1,9}\])+\z"
"""Paths that mean the same everywhere: names and indexes. No wildcards, no filters."""
NAME = r"\A\$\.[A-Za-z_][A-Za-z0-9_]*\z"
"""One name: a path to a field of the document itself."""


def qualified_events(
    merged: DataFrame, controls: str = CONTROLS, *, as_they_arrive: bool = False
) -> DataFrame:
    """First stage: an alert for each event and each control event in force whose rules it meets.

    `as_they_arrive` takes for the newest row the one that Spark has last, for sources that have no order; which
    control event came first or last is told by `_sn` in any case.
    """
    return _alerts(_joined(events_and_controls(merged, controls), as_they_arrive))


def counted_alerts(qualified: DataFrame) -> DataFrame:
    """Second stage: the same alerts, each with how many times it has been raised for its customer."""
    return (
        qualified.select("_shard", "_sn", _unwrapped("value", QUALIFIED).alias("alert"))
        .groupBy("_shard", "alert.customerId", "alert.alertId")
        .agg(F.max("_sn").alias("_sn"), F.count("*").alias("times"), F.max_by("alert", "_sn").alias("alert"))
        .select("_shard", "_sn", "alert.*", "times")
    )


def changed_rules(controls: DataFrame) -> DataFrame:
    """Optional stage before the others: leave out control events that change nothing.

    Whoever repeats rules for hours lets the state of `qualified_events` grow by each repetition. Behind this
    stage it grows with what differs: only the first control event of a customer's alert id passes, and one for
    everybody passes unless it is all that was ever said under its alert id.
    """
    said = F.struct("control.rules", "control.alertName", "control.alertDescription", "control.threshold")
    return (
        controls.select("_shard", "_sn", "value", _unwrapped("value", CONTROL).alias("control"))
        .where(_is_valid(F.col("control")))
        .groupBy(
            "_shard", F.col("control.customerId").alias("key"), F.col("control.alertId").alias("alertId")
        )
        .agg(
            F.max("_sn").alias("_sn"),
            F.max_by("value", "_sn").alias("value"),
            F.count("*").alias("heard"),
            F.size(F.collect_set(said)).alias("different"),
        )
        .where((F.col("heard") == 1) | ((F.col("key") == EVERYBODY) & (F.col("different") > 1)))
        .select("_shard", "_sn", "key", "value")
    )


def events_and_controls(merged: DataFrame, controls: str) -> DataFrame:
    """Filter and unwrap: `_shard`, `_sn` and one of `event`, `control`; what is neither is left out.

    An explosion of none or one does what `where` would do. Spark computes a condition before what it is about,
    and so would parse every value twice.
    """
    is_control = F.col("topic") == controls
    unwrapped = F.struct(
        F.when(~is_control, _unwrapped("value", EVENT)).alias("event"),
        F.when(is_control, _unwrapped("value", CONTROL)).alias("control"),
    )
    usable = F.filter(F.array(unwrapped), lambda row: _is_event(row["event"]) | _is_valid(row["control"]))
    return merged.select("_shard", "_sn", F.explode(usable).alias("row")).select(
        "_shard", "_sn", "row.event", "row.control"
    )


def _joined(rows: DataFrame, as_they_arrive: bool) -> DataFrame:
    """Both joins: a row for each event, with what its bucket was told before it.

    `rules` is each thing that was said, once, however often it was repeated; `told` is when, in few bytes.
    """
    customer = F.coalesce("event.customerId", "control.customerId")
    for_everybody = F.col("control.customerId") == EVERYBODY
    own_bucket = F.pmod(F.hash(customer), F.lit(BUCKETS))
    all_buckets = F.sequence(F.lit(0), F.lit(BUCKETS - 1))
    said = [f"control.{name}" for name in ("customerId", "alertId", "alertName", "rules")]
    what = F.xxhash64(*said).alias("what")
    is_control = F.col("control").isNotNull()
    newest = F.last if as_they_arrive else lambda column: F.max_by(column, "_sn")
    return (
        rows.withColumn(
            "bucket", F.explode(F.when(for_everybody, all_buckets).otherwise(F.array(own_bucket)))
        )
        .groupBy("_shard", "bucket")
        .agg(
            newest("_sn").alias("_sn"),
            newest("event").alias("event"),
            F.sort_array(F.collect_set(F.when(is_control, F.struct(what, *said)))).alias("rules"),
            F.sort_array(F.collect_set(F.when(is_control, F.struct("_sn", what)))).alias("told"),
        )
        .where(F.col("event.customerId").isNotNull())
    )


def _alerts(joined: DataFrame) -> DataFrame:
    """Union and Qualifier. `rank` counts the alerts of one event: those of everybody's rules come first."""
    everybody = F.filter("rules", lambda rule: rule["customerId"] == EVERYBODY)
    own = F.filter(
        "rules",
        lambda rule: (rule["customerId"] == F.col("event.customerId")) & (rule["customerId"] != EVERYBODY),
    )
    in_force = F.concat(_in_force(everybody, last=True), _in_force(own, last=False))
    return (
        joined.withColumn("met", _met(in_force))
        .where(F.size("met") > 0)
        .select("_shard", "_sn", "event", F.posexplode("met").alias("rank", "control"))
        .select(
            "_shard",
            "_sn",
            "event.customerId",
            "control.alertId",
            "control.alertName",
            F.when(F.col("control.customerId") == EVERYBODY, "everybody")
            .otherwise("customer")
            .alias("scope"),
            "event.payload",
            "event.ingestedAt",
            F.col("_shard").alias("shard"),
            F.col("_sn").alias("sn"),
            "rank",
        )
    )


def _in_force(rules: Column, *, last: bool) -> Column:
    """Of what was said under one alert id the last or the first; alert ids in the order in which they came."""
    return F.when(F.size(rules) <= 1, rules).otherwise(_by_alert_id(rules, last=last))


def _by_alert_id(rules: Column, *, last: bool) -> Column:
    def dated(rule: Column) -> Column:
        times = F.filter("told", lambda one: one["what"] == rule["what"])["_sn"]
        return F.struct(
            F.array_min(times).alias("first"), F.array_max(times).alias("last"), rule.alias("rule")
        )

    by_first = F.sort_array(F.transform(rules, dated))
    ids = F.array_distinct(F.transform(by_first, lambda one: one["rule"]["alertId"]))

    def counting(alert_id: Column) -> Column:
        same = F.filter(by_first, lambda one: one["rule"]["alertId"] == alert_id)
        by_last = F.transform(same, lambda one: F.struct(one["last"], one["rule"].alias("rule")))
        return F.array_max(by_last)["rule"] if last else F.element_at(same, 1)["rule"]

    return F.transform(ids, counting)


def _met(controls: Column) -> Column:
    """Those all of whose rules the event meets.

    The payload is parsed once, not once for each rule. Only a path into what is nested reads it anew:
    `get_json_object` has to understand its path first, at each call, and that takes longer than all the rest.
    """

    def value(fields: Column, path: Column) -> Column:
        nested = F.call_function("get_json_object", F.col("event.payload"), path)
        return F.when(path.rlike(NAME), fields[F.substring(path, 3, 2**31 - 1)]).otherwise(nested)

    def met_with(fields: Column) -> Column:
        return F.filter(
            controls,
            lambda control: F.forall(
                control["rules"], lambda rule: value(fields, rule["path"]) == rule["value"]
            ),
        )

    fields = F.from_json("event.payload", "MAP<STRING, STRING>")
    return F.transform(F.array(fields), met_with)[0]


def _unwrapped(column: str, schema: str) -> Column:
    return F.from_json(F.col(column).cast("string"), schema)


def _is_event(event: Column) -> Column:
    return event["customerId"].isNotNull() & event["payload"].isNotNull()


def _is_valid(control: Column) -> Column:
    """A control event that can be evaluated: all its rules are equality checks on plain paths."""
    rules = control["rules"]
    plain = F.forall(
        rules,
        lambda rule: (rule["check"] == "equals") & rule["path"].rlike(PATH) & rule["value"].isNotNull(),
    )
    named = control["customerId"].isNotNull() & control["alertId"].isNotNull()
    return named & rules.isNotNull() & plain
