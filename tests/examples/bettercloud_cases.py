"""Random sequences of BetterCloud inputs, good and bad, for the tests of the oracle and of the dataflow."""

import json
import random
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "bettercloud"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

from oracle import EVERYBODY, Ordered  # noqa: E402

CUSTOMERS = ("ann", "bob", "cy")
ALERTS = ("docs", "logins", "mails")
KINDS = ("shared", "opened")
BAD = (
    None,
    b"",
    b"no JSON",
    b"[1, 2]",
    b'"text"',
    b"{}",
    b'{"customerId": "ann"}',
    b'{"customerId": null, "payload": "{}"}',
    b'{"alertId": "docs", "customerId": "ann"}',
    b'{"alertId": "docs", "customerId": "ann", "rules": null}',
)


def event(customer: str, payload: Any, ingested: int | None = 7) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return json.dumps({"customerId": customer, "payload": text, "ingestedAt": ingested}).encode()


def control(customer: str, alert: str, name: str, *rules: tuple[str, str], check: str = "equals") -> bytes:
    given = [{"path": path, "check": check, "value": value} for path, value in rules]
    return json.dumps({"rules": given, "customerId": customer, "alertId": alert, "alertName": name}).encode()


def sequence(seed: int, length: int) -> list[Ordered]:
    """Inputs numbered 0, 1, ...: many rules, often the same alert id, some that nobody can evaluate."""
    rng = random.Random(seed)
    return [Ordered(sn, *_one(rng, sn)) for sn in range(length)]


def _one(rng: random.Random, sn: int) -> tuple[bool, bytes | None]:
    draw = rng.random()
    if draw < 0.1:
        return rng.random() < 0.5, rng.choice(BAD)
    if draw < 0.4:
        return True, _control(rng, sn)
    payload = {
        "kind": rng.choice(KINDS),
        "by": {"name": rng.choice(CUSTOMERS), "tags": [rng.choice(KINDS), 3, True]},
    }
    customer = rng.choice((*CUSTOMERS, *CUSTOMERS, EVERYBODY))
    return False, event(
        customer, rng.choice((payload, payload, payload, "no JSON", {})), rng.choice((None, sn))
    )


def _control(rng: random.Random, sn: int) -> bytes:
    rules = [
        ("$.kind", rng.choice(KINDS)),
        ("$.by.name", rng.choice(CUSTOMERS)),
        ("$.by.tags[0]", rng.choice(KINDS)),
        ("$.by.tags[1]", "3"),
        ("$.by.tags[2]", "true"),
        ("$.by.tags[9]", "shared"),
        ("$.absent", "x"),
    ]
    weights = (8, 3, 3, 3, 3, 1, 1)
    chosen = rng.choices(rules, weights, k=rng.choice((0, 1, 1, 2)))
    bad = rng.random()
    if bad < 0.05:
        chosen.append(("$..kind", "shared"))
    return control(
        rng.choice((EVERYBODY, *CUSTOMERS)),
        rng.choice(ALERTS),
        f"rule {sn % 7}",
        *chosen,
        check="contains" if bad > 0.95 else "equals",
    )
