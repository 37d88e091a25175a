"""The BetterCloud feed: what the paper's generator sends, in the same shares, and the same again for a seed."""

import importlib.util
import json
import sys
from collections import Counter
from typing import Any

import pytest
from bettercloud_cases import FOLDER
from oracle import EVERYBODY, Ordered, meets, replay

_SPEC = importlib.util.spec_from_file_location("bettercloud_feed", FOLDER / "feed.py")
assert _SPEC is not None and _SPEC.loader is not None
feed = importlib.util.module_from_spec(_SPEC)  # payments has a feed too
sys.modules["bettercloud_feed"] = feed
_SPEC.loader.exec_module(feed)

BEGAN = 1_700_000_000_000


@pytest.fixture(scope="module")
def records() -> list[Any]:
    return list(feed.Feed(rate=1000, seconds=40).records(BEGAN))


def test_rates_are_kept(records: list[Any]) -> None:
    kinds = Counter(record.is_control for record in records)
    assert kinds == {False: 40_000, True: 200}
    assert [record.due for record in records] == sorted(record.due for record in records)


def test_the_same_seed_sends_the_same_and_another_one_something_else(records: list[Any]) -> None:
    assert list(feed.Feed(rate=1000, seconds=1).records(BEGAN)) == records[:1005]
    assert list(feed.Feed(rate=1000, seconds=1, seed=2).records(BEGAN)) != records[:1005]


def test_a_faster_feed_sends_the_same_events_sooner(records: list[Any]) -> None:
    def payloads(some: Any) -> list[str]:
        return [json.loads(one.value)["payload"] for one in some if not one.is_control]

    assert payloads(feed.Feed(rate=5000, seconds=1).records(BEGAN)) == payloads(records)[:5000]


def test_shares_are_those_of_the_paper(records: list[Any]) -> None:
    events = [json.loads(record.value) for record in records if not record.is_control]
    payloads = [json.loads(event["payload"]) for event in events]
    matching = sum(meets(event["payload"], feed.RULES) for event in events) / len(events)
    menus = [payload for payload in payloads if payload["title"] == "lunch-menu"]
    assert matching == pytest.approx(0.0725, abs=0.004)
    assert len(menus) / len(events) == pytest.approx(0.05, abs=0.004)
    assert sum(menu["audience"] == "public" for menu in menus) / len(menus) == pytest.approx(0.5, abs=0.03)
    assert len({event["customerId"] for event in events}) == 250


def test_one_control_event_in_five_is_for_everybody() -> None:
    many = feed.Feed(rate=1, seconds=2000, controls_per_second=5).records(BEGAN)
    keys = [record.key for record in many if record.is_control]
    assert keys.count(EVERYBODY) / len(keys) == pytest.approx(0.2, abs=0.015)
    assert len(set(keys)) == 251


def test_alerts_are_about_a_seventh_of_the_events_once_all_rules_are_there(records: list[Any]) -> None:
    rules = [record for record in feed.Feed(1, 2000).records(BEGAN) if record.is_control]
    order = [Ordered(sn, one.is_control, one.value.encode()) for sn, one in enumerate([*rules, *records])]
    assert len(replay({0: order})) / 40_000 == pytest.approx(0.145, abs=0.006)


def test_times_are_those_at_which_an_event_was_due(records: list[Any]) -> None:
    control, first, second = (json.loads(record.value) for record in records[:3])
    assert (control["createdAt"], first["ingestedAt"], second["ingestedAt"]) == (BEGAN, BEGAN, BEGAN + 1)
    assert all(record.key == json.loads(record.value)["customerId"] for record in records[:100])
