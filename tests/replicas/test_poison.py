"""When deaths prove a record to be poison, and when they do not."""

import pytest

from lockstep.errors import LockstepError
from lockstep.replicas.poison import MOST_IN_A_ROW, Suspect, Verdict

BAD = Suspect("events", 0, 17, "cannot cast")
OTHER = Suspect("events", 0, 18, "cannot cast")
SITES = ("site-1", "site-2")


def test_all_sites_died_with_it_in_hand() -> None:
    verdict = Verdict(SITES)
    assert verdict.died("site-1", BAD) is None
    assert verdict.died("site-2", BAD) == BAD
    assert verdict.died("site-1", BAD) is None, "it is skipped once"


def test_one_site_needs_to_die_of_it_twice() -> None:
    verdict = Verdict(("site-1",))
    assert verdict.died("site-1", BAD) is None
    assert verdict.died("site-1", BAD) == BAD


def test_a_record_that_one_site_got_past_is_not_skipped() -> None:
    verdict = Verdict(SITES)
    verdict.died("site-1", BAD)
    verdict.alive("site-1", {"state": "running", "positions": {"events": {"0": 18}}})
    assert verdict.died("site-2", BAD) is None
    assert verdict.died("site-2", BAD) is None, "site-1 has no quarrel with it"


def test_a_site_that_is_only_starting_clears_nothing() -> None:
    verdict = Verdict(SITES)
    verdict.died("site-1", BAD)
    verdict.alive("site-1", {"state": "starting"})
    verdict.alive("site-1", {"state": "running", "positions": {"events": {"0": 17}}})
    assert verdict.died("site-2", BAD) == BAD


def test_deaths_for_other_reasons_prove_nothing() -> None:
    verdict = Verdict(SITES)
    verdict.died("site-1", BAD)
    assert verdict.died("site-2", None) is None
    assert verdict.died("site-2", OTHER) is None
    assert verdict.died("site-1", OTHER) == OTHER


def test_an_outage_does_not_skip_the_whole_input_record_by_record() -> None:
    verdict = Verdict(("site-1",))
    with pytest.raises(LockstepError, match=f"{MOST_IN_A_ROW + 1} records in a row"):
        for offset in range(100):
            for _ in range(2):
                verdict.died("site-1", Suspect("events", 0, offset, "no such topic"))
    assert len(verdict.skipped) == MOST_IN_A_ROW


def test_poison_records_far_apart_are_all_skipped() -> None:
    verdict = Verdict(("site-1",))
    for offset in range(0, 40, 2):
        for _ in range(2):
            verdict.died("site-1", Suspect("events", 0, offset, "cannot cast"))
    assert len(verdict.skipped) == 20


def test_the_suspect_comes_from_the_status() -> None:
    status = {"suspect": {"topic": "events", "shard": 0, "offset": 17, "reason": "cannot cast"}}
    assert Suspect.of_status(status) == BAD
    assert Suspect.of_status({"suspect": None}) is None
    assert Suspect.of_status({}) is None
