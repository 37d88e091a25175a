"""The BetterCloud dataflow for the micro-batch engine: joins, Qualifier and Counter in one stage.

A micro-batch gives one row of an aggregation for each group and batch, not for each input, so the dataflow of
`dataflow.py` would lose alerts here. Instead a stateful processor in Python walks through a shard's inputs of the
batch in the agreed order: Spark hands them over in any order, `_sn` restores it. A shard is one group, so a rule
for everybody needs no copies, and the Counter is a dictionary beside the rules.
"""

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
from dataflow import CONTROLS, EVERYBODY, QUALIFIED, events_and_controls
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

ALERT = f"{QUALIFIED}, times LONG"
Key = tuple[str, str]
"""A customer, or EVERYBODY, and an alert id."""


def alerts_in_batches(merged: DataFrame, controls: str = CONTROLS) -> DataFrame:
    """All stages at once: every alert, counted."""
    rows = events_and_controls(merged, controls).select(
        F.col("_shard").alias("shard"),  # pandas gets no names that begin with an underscore
        F.col("_sn").alias("sn"),
        F.coalesce("event.customerId", "control.customerId").alias("customerId"),
        "event.payload",
        "event.ingestedAt",
        "control.alertId",
        "control.alertName",
        F.to_json("control.rules").alias("rules"),
    )
    return rows.groupBy("shard").transformWithStateInPandas(Alerts(), ALERT, "Update", "None")


class Alerts(StatefulProcessor):
    """One shard: the control events in force, and how often each alert was raised."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        key = "customerId STRING, alertId STRING"
        self._controls = handle.getMapState("controls", key, "since LONG, alertName STRING, rules STRING")
        self._counts = handle.getMapState("counts", key, "times LONG")

    def handleInputRows(
        self, key: tuple[int], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        frames = [frame for frame in rows if len(frame)]
        if not frames:
            return
        inputs = pd.concat(frames).sort_values("sn")
        walk = _Walk(key[0], self._controls, self._counts)
        columns = ["sn", "customerId", "payload", "ingestedAt", "alertId", "alertName", "rules"]
        alerts = [
            alert
            for values in zip(*(inputs[column].tolist() for column in columns), strict=True)
            for alert in walk.step(*values)
        ]
        walk.save()
        if alerts:
            yield pd.DataFrame(alerts)

    def close(self) -> None: ...


class _Control:
    """A control event in force. `since`: when its alert id first came, which is its place among the others."""

    def __init__(self, since: int, name: str | None, rules: str) -> None:
        self.since, self.name, self.rules = since, name, rules
        self._checks = [(_steps(rule["path"]), rule["value"]) for rule in json.loads(rules)]

    def is_met(self, document: Any) -> bool:
        return all(_read(document, steps) == value for steps, value in self._checks)


class _Walk:
    """A batch's inputs of one shard, one after the other."""

    def __init__(self, shard: int, controls: Any, counts: Any) -> None:
        self._shard = shard
        self._saved_controls = controls
        self._saved_counts = counts
        found = sorted((value[0], tuple(key), value[1], value[2]) for key, value in controls.iterator())
        self._controls: dict[str, dict[str, _Control]] = {}
        for since, (customer, alert_id), name, rules in found:
            self._controls.setdefault(customer, {})[alert_id] = _Control(since, name, rules)
        self._counts: dict[Key, int] = {}
        self._changed: set[Key] = set()

    def step(
        self, sn: int, customer: str, payload: str | None, ingested: float | None, *control: Any
    ) -> Iterator[dict[str, Any]]:
        if payload is None:
            self._install(sn, customer, *control)
            return
        rank = 0
        document = _document(payload)
        own = {} if customer == EVERYBODY else self._controls.get(customer, {})
        for scope, controls in (("everybody", self._controls.get(EVERYBODY, {})), ("customer", own)):
            for alert_id, control_in_force in controls.items():
                if not control_in_force.is_met(document):
                    continue
                yield {
                    "customerId": customer,
                    "alertId": alert_id,
                    "alertName": control_in_force.name,
                    "scope": scope,
                    "payload": payload,
                    "ingestedAt": None if pd.isna(ingested) else int(ingested or 0),
                    "shard": self._shard,
                    "sn": sn,
                    "rank": rank,
                    "times": self._count((customer, alert_id)),
                }
                rank += 1

    def save(self) -> None:
        for customer, alert_id in self._changed:
            control = self._controls[customer][alert_id]
            self._saved_controls.updateValue(
                (customer, alert_id), (control.since, control.name, control.rules)
            )
        for key, times in self._counts.items():
            self._saved_counts.updateValue(key, (times,))

    def _install(self, sn: int, customer: str, alert_id: str, name: str | None, rules: str) -> None:
        controls = self._controls.setdefault(customer, {})
        known = controls.get(alert_id)
        if known is None or customer == EVERYBODY:
            controls[alert_id] = _Control(sn if known is None else known.since, name, rules)
            self._changed.add((customer, alert_id))

    def _count(self, key: Key) -> int:
        if key not in self._counts:
            saved = self._saved_counts.getValue(key)
            self._counts[key] = saved[0] if saved is not None else 0
        self._counts[key] += 1
        return self._counts[key]


def _document(payload: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


def _steps(path: str) -> list[str | int]:
    steps = path[1:].replace("[", ".").replace("]", "").split(".")[1:]
    return [int(step) if step.isdigit() else step for step in steps]


def _read(document: Any, steps: list[str | int]) -> str | None:
    """What stands at the end of these names and indexes, as text."""
    for step in steps:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    if isinstance(document, str) or document is None:
        return document
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
