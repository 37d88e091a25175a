"""What a run of BetterCloud must have put out: the agreed order replayed in plain Python, alert by alert.

It knows nothing of Spark. `replay` takes the inputs in the order that the sites agreed on, which `agreed.py` reads
from Kafka, and keeps the rules in two dictionaries. `compare` holds a run's alerts against it: every alert, every
field, and names the first difference in that order.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

EVERYBODY = "deadbeef-dead-beef-dead-beefdeadbeef"
PATH = re.compile(r"\$((?:\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]{1,9}\])+)")
STEP = re.compile(r"\.(\w+)|\[([0-9]+)\]", re.ASCII)


@dataclass(frozen=True)
class Ordered:
    """Input number `sn` of its shard's order."""

    sn: int
    is_control: bool
    value: bytes | None


@dataclass(frozen=True)
class Alert:
    """`times` is None where a run ends before the Counter."""

    shard: int
    sn: int
    rank: int
    customerId: str
    alertId: str
    alertName: str | None
    scope: str
    payload: str
    ingestedAt: int | None
    times: int | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """Which alert it is: the event's shard and number there, and a count of the event's alerts."""
        return self.shard, self.sn, self.rank


@dataclass(frozen=True)
class Difference:
    """The first place in the order at which a run and the oracle differ, and how often they do."""

    what: str
    place: tuple[int, int, int]
    expected: Alert | None
    found: Alert | None
    count: int

    def __str__(self) -> str:
        shard, sn, rank = self.place
        return (
            f"{self.count} alerts differ; the first is {self.what}: shard {shard}, _sn {sn}, alert {rank}: "
            f"expected {self.expected}, found {self.found}"
        )


@dataclass
class Shard:
    """One shard's rules and counts. `take` is the whole application."""

    number: int
    everybody: dict[str, dict[str, Any]] = field(default_factory=dict)
    customers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, given: Ordered) -> list[Alert]:
        """The alerts that this input raises, in their order."""
        value = _unwrap(given.value)
        if given.is_control:
            if _is_control(value):
                self._install(value)
            return []
        if not _is_text(value.get("customerId")) or not _is_text(value.get("payload")):
            return []
        return list(self._qualify(given.sn, value))

    def _install(self, control: dict[str, Any]) -> None:
        customer, alert_id = control["customerId"], control["alertId"]
        if customer == EVERYBODY:
            self.everybody[alert_id] = control  # the last one counts, in the place of the first
        else:
            self.customers.setdefault(customer, {}).setdefault(alert_id, control)  # the first one counts

    def _qualify(self, sn: int, event: dict[str, Any]) -> Iterator[Alert]:
        customer, payload = event["customerId"], event["payload"]
        everybody = [("everybody", control) for control in self.everybody.values()]
        own = [("customer", control) for control in self.customers.get(customer, {}).values()]
        met = [(scope, control) for scope, control in everybody + own if meets(payload, control["rules"])]
        for rank, (scope, control) in enumerate(met):
            alert_id = control["alertId"]
            times = self.counts[customer, alert_id] = self.counts.get((customer, alert_id), 0) + 1
            yield Alert(
                shard=self.number,
                sn=sn,
                rank=rank,
                customerId=customer,
                alertId=alert_id,
                alertName=control.get("alertName"),
                scope=scope,
                payload=payload,
                ingestedAt=event.get("ingestedAt"),
                times=times,
            )


def replay(orders: Mapping[int, Iterable[Ordered]]) -> list[Alert]:
    """The alerts of all shards, each shard's in its order."""
    return [
        alert
        for number, order in sorted(orders.items())
        for shard in (Shard(number),)
        for given in order
        for alert in shard.take(given)
    ]


def compare(
    expected: Sequence[Alert], found: Sequence[Alert], *, counted: bool = True, in_order: bool = True
) -> Difference | None:
    """None if the run put out exactly what it had to, each alert once.

    `counted`: whether the run includes the Counter. `in_order`: whether a customer's alerts have to come in the
    order of their events; a micro-batch puts out its rows sorted by what they say.
    """
    if not counted:
        expected = [Alert(**{**asdict(alert), "times": None}) for alert in expected]
    wanted = {alert.place: alert for alert in expected}
    differences: list[tuple[tuple[int, int, int], str, Alert | None, Alert | None]] = []
    seen: set[tuple[int, int, int]] = set()
    newest: dict[str, Alert] = {}
    for alert in found:
        before = newest.setdefault(alert.customerId, alert)
        if alert.place in seen:
            differences.append((alert.place, "duplicated", wanted.get(alert.place), alert))
        elif alert.place not in wanted:
            differences.append((alert.place, "too many", None, alert))
        elif alert != wanted[alert.place]:
            differences.append((alert.place, "different", wanted[alert.place], alert))
        elif in_order and alert.place < before.place:
            differences.append((alert.place, "out of order", before, alert))
        seen.add(alert.place)
        newest[alert.customerId] = max(before, alert, key=lambda one: one.place)
    differences += [(place, "lost", alert, None) for place, alert in wanted.items() if place not in seen]
    if not differences:
        return None
    place, what, wanted_alert, found_alert = min(differences, key=lambda one: one[0])
    return Difference(what, place, wanted_alert, found_alert, len(differences))


def alert_of(value: bytes) -> Alert:
    """An alert as a run writes it."""
    return Alert(**json.loads(value))


def meets(payload: str, rules: Sequence[Mapping[str, str]]) -> bool:
    """Whether a payload meets all of the rules."""
    try:
        document = json.loads(payload, object_pairs_hook=_first_of_each)
    except ValueError:
        document = None
    return all(read(document, rule["path"]) == rule["value"] for rule in rules)


def read(document: Any, path: str) -> str | None:
    """What stands at a JSONPath of names and indexes, as text; None if nothing does."""
    for name, index in STEP.findall(path):
        match document:
            case dict() if name:
                document = document.get(name)
            case list() if index and int(index) < len(document):
                document = document[int(index)]
            case _:
                return None
    match document:
        case None | str():
            return document
        case _:
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _unwrap(value: bytes | None) -> dict[str, Any]:
    try:
        decoded = json.loads(value or b"null")
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _is_control(value: Mapping[str, Any]) -> bool:
    rules = value.get("rules")
    return (
        _is_text(value.get("customerId"))
        and _is_text(value.get("alertId"))
        and isinstance(rules, list)
        and all(isinstance(rule, dict) and _is_rule(rule) for rule in rules)
    )


def _is_rule(rule: Mapping[str, Any]) -> bool:
    path, value = rule.get("path"), rule.get("value")
    return (
        rule.get("check") == "equals"
        and _is_text(path)
        and _is_text(value)
        and bool(PATH.fullmatch(str(path)))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))
