"""When a site counts as caught up, and that nothing keeps it from it for ever."""

import pytest

from lockstep.replicas.catch_up import PATIENCE_SECONDS, UNKNOWN_SECONDS, CatchUp

TICK = 0.25


def seconds_until_reached(
    rate: float, speed: float, behind: int, *, batch_seconds: float = 0.0, most: float = 120.0
) -> float:
    """A site that reads `speed` records a second, `behind` an input of `rate` records a second."""
    catch_up = CatchUp(0.0, batch_seconds)
    now, position, end = 0.0, 0.0, float(behind)
    while now < most:
        if catch_up.reached(now, int(position), int(end - position)):
            return now
        now += TICK
        end += rate * TICK
        position = min(end, position + speed * TICK)
    return float("inf")


def test_a_site_at_the_end_runs_at_once() -> None:
    assert seconds_until_reached(rate=1000, speed=20_000, behind=0) == 0.0


def test_a_site_that_replays_runs_once_it_is_within_half_a_second() -> None:
    took = seconds_until_reached(rate=1000, speed=20_000, behind=60_000)
    assert took == pytest.approx((60_000 - 500) / 19_000, abs=2 * TICK)


def test_without_new_input_the_whole_backlog_counts() -> None:
    assert seconds_until_reached(rate=0, speed=1000, behind=5000) == pytest.approx(5.0, abs=TICK)


def test_a_micro_batch_site_may_be_two_batches_behind() -> None:
    exact = seconds_until_reached(rate=1000, speed=1000, behind=1400, batch_seconds=0.5)
    assert exact <= 2 * TICK
    assert seconds_until_reached(rate=1000, speed=1000, behind=1400) > PATIENCE_SECONDS - TICK


def test_an_input_as_fast_as_the_site_does_not_hold_it_up_for_ever() -> None:
    took = seconds_until_reached(rate=5000, speed=5000, behind=50_000)
    assert took == pytest.approx(PATIENCE_SECONDS, abs=TICK)


def test_an_input_faster_than_the_site_does_not_either() -> None:
    assert seconds_until_reached(rate=9000, speed=5000, behind=50_000) <= PATIENCE_SECONDS + TICK


def test_a_lag_that_nobody_knows_is_waited_for_a_moment() -> None:
    catch_up = CatchUp(10.0)
    assert not catch_up.reached(10.0, 0, None)
    assert not catch_up.reached(10.0 + UNKNOWN_SECONDS / 2, 0, None)
    assert catch_up.reached(10.0 + UNKNOWN_SECONDS, 0, None)


def test_a_known_lag_that_is_not_told_once_is_no_reason_to_run() -> None:
    catch_up = CatchUp(0.0)
    assert not catch_up.reached(1.0, 0, 10_000)
    assert not catch_up.reached(UNKNOWN_SECONDS + 1.0, 0, None)


def test_a_site_that_ran_stays_running() -> None:
    catch_up = CatchUp(0.0)
    assert catch_up.reached(0.0, 100, 0)
    assert catch_up.reached(0.5, 100, 90_000), "a pause at a boundary"
