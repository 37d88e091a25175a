"""The BetterCloud oracle says what the application's code says, and the comparison finds whatever differs."""

from dataclasses import replace

import pytest
from bettercloud_cases import control, event, sequence
from oracle import EVERYBODY, Alert, Ordered, compare, replay


def alerts(*given: tuple[bool, bytes | None]) -> list[tuple[int, str, str | None, str, int | None]]:
    """(sn, customer, name, scope, times) of each alert that these inputs raise."""
    order = [Ordered(sn, is_control, value) for sn, (is_control, value) in enumerate(given)]
    return [(one.sn, one.customerId, one.alertName, one.scope, one.times) for one in replay({0: order})]


PUBLIC = event("ann", {"audience": "public"})
RULE = ("$.audience", "public")


def test_the_first_control_event_of_an_alert_id_counts_for_a_customer() -> None:
    first, second = control("ann", "docs", "first", RULE), control("ann", "docs", "second")
    assert alerts((True, first), (True, second), (False, PUBLIC)) == [(2, "ann", "first", "customer", 1)]


def test_the_last_control_event_of_an_alert_id_counts_for_everybody() -> None:
    first, second = control(EVERYBODY, "docs", "first", RULE), control(EVERYBODY, "docs", "second", RULE)
    assert alerts((True, first), (True, second), (False, PUBLIC)) == [(2, "ann", "second", "everybody", 1)]


def test_an_event_meets_only_rules_that_came_before_it() -> None:
    rule = control("ann", "docs", "late", RULE)
    assert alerts((False, PUBLIC), (True, rule), (False, PUBLIC)) == [(2, "ann", "late", "customer", 1)]


def test_rules_of_one_control_event_have_to_be_met_together() -> None:
    both = control("ann", "docs", "both", RULE, ("$.kind", "shared"))
    shared = event("ann", {"audience": "public", "kind": "shared"})
    assert alerts((True, both), (False, PUBLIC), (False, shared)) == [(2, "ann", "both", "customer", 1)]


def test_one_event_raises_everybodys_alerts_before_its_customers_and_the_counter_goes_on() -> None:
    own, all_of_us = control("ann", "docs", "own", RULE), control(EVERYBODY, "docs", "all", RULE)
    assert alerts((True, own), (True, all_of_us), (False, PUBLIC), (False, PUBLIC)) == [
        (2, "ann", "all", "everybody", 1),
        (2, "ann", "own", "customer", 2),
        (3, "ann", "all", "everybody", 3),
        (3, "ann", "own", "customer", 4),
    ]


def test_a_rule_of_one_customer_is_none_of_another() -> None:
    assert alerts((True, control("bob", "docs", "bobs", RULE)), (False, PUBLIC)) == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"no JSON",
        control("ann", "docs", "a", RULE, check="contains"),
        control("ann", "docs", "a", ("$..audience", "public")),
        control("ann", "docs", "a", ("$", "public")),
        b'{"customerId": "ann", "alertId": "docs"}',
    ],
)
def test_what_cannot_be_evaluated_is_left_out(value: bytes | None) -> None:
    assert alerts((True, value), (False, PUBLIC), (False, value)) == []


EXPECTED = replay({0: sequence(1, 300), 1: sequence(2, 300)})


def test_the_sequences_of_the_tests_raise_alerts_of_every_kind() -> None:
    assert len(EXPECTED) > 200
    assert {one.scope for one in EXPECTED} == {"everybody", "customer"}
    assert max(one.rank for one in EXPECTED) >= 2


def test_equal_alerts_are_accepted() -> None:
    assert compare(EXPECTED, EXPECTED) is None
    assert compare(EXPECTED, [replace(one, times=None) for one in EXPECTED], counted=False) is None
    assert compare(EXPECTED, EXPECTED[::-1], in_order=False) is None


def lost(found: list[Alert]) -> None:
    del found[70]


def duplicated(found: list[Alert]) -> None:
    found.insert(90, found[70])


def too_many(found: list[Alert]) -> None:
    found.insert(71, replace(found[70], rank=99))


def different(found: list[Alert]) -> None:
    found[70] = replace(found[70], times=(found[70].times or 0) + 1)


def out_of_order(found: list[Alert]) -> None:
    customer = [at for at, one in enumerate(found) if one.customerId == found[70].customerId and at >= 70]
    found[customer[0]], found[customer[1]] = found[customer[1]], found[customer[0]]


@pytest.mark.parametrize("bug", [lost, duplicated, too_many, different, out_of_order])
def test_the_comparison_finds_a_planted_bug_and_names_its_place(bug) -> None:  # type: ignore[no-untyped-def]
    found = list(EXPECTED)
    bug(found)
    difference = compare(EXPECTED, found)
    assert difference is not None
    assert difference.what == bug.__name__.replace("_", " ")
    if bug is not too_many:
        assert difference.place == EXPECTED[70].place
    assert f"_sn {difference.place[1]}" in str(difference)


def test_the_first_of_several_differences_is_named() -> None:
    found = [replace(one, alertName="?") if at in (50, 120) else one for at, one in enumerate(EXPECTED)]
    difference = compare(EXPECTED, found)
    assert difference is not None
    assert (difference.place, difference.count) == (EXPECTED[50].place, 2)


def _last_wins_for_customers(shard, control) -> None:  # type: ignore[no-untyped-def]
    place = (
        shard.everybody
        if control["customerId"] == EVERYBODY
        else shard.customers.setdefault(control["customerId"], {})
    )
    place[control["alertId"]] = control


def _first_wins_for_everybody(shard, control) -> None:  # type: ignore[no-untyped-def]
    place = (
        shard.everybody
        if control["customerId"] == EVERYBODY
        else shard.customers.setdefault(control["customerId"], {})
    )
    place.setdefault(control["alertId"], control)


@pytest.mark.parametrize("bug", [_last_wins_for_customers, _first_wins_for_everybody])
def test_an_application_that_keeps_the_wrong_rule_is_found_out(bug, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("oracle.Shard._install", bug)
    wrong = replay({0: sequence(1, 300), 1: sequence(2, 300)})
    assert compare(EXPECTED, wrong) is not None


def test_sites_that_read_in_another_order_are_found_out() -> None:
    swapped = list(sequence(1, 300))
    differing = 0
    for at in range(200, 299):
        if swapped[at].is_control != swapped[at + 1].is_control:
            other = list(swapped)
            other[at] = replace(swapped[at + 1], sn=at)
            other[at + 1] = replace(swapped[at], sn=at + 1)
            differing += compare(EXPECTED, replay({0: other, 1: sequence(2, 300)})) is not None
    assert differing > 10
