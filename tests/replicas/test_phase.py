"""Promises of phase keeping: boundaries start apart, drift is noticed, nobody waits longer than a batch."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.replicas import phase


def test_sites_start_a_fraction_of_a_batch_apart() -> None:
    assert [phase.stagger(n, 2, 8000) for n in range(2)] == [0, 4000]
    assert [phase.stagger(n, 3, 9000) for n in range(3)] == [0, 3000, 6000]
    assert phase.stagger(1, 2, 300_000) == phase.MAX_STAGGER_MS, "nobody waits minutes for half a long batch"
    assert phase.stagger(0, 1, 8000) == 0


@given(
    st.floats(0, 1e6),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=4),
    st.floats(1000, 300_000),
    st.floats(0, 5000),
)
def test_the_delay_takes_the_boundary_apart(
    now: float, others: list[float], batch: float, start: float
) -> None:
    delay = phase.delay_until_apart(now, others, batch, start)
    assert 0 <= delay <= batch
    guard = min(phase.START_GUARD_MS, batch / (2 * (len(others) + 1)))
    assert all(phase.distance(now + delay + start, other, batch) >= guard / 2 for other in others)


def test_no_wait_where_nothing_is_in_the_way() -> None:
    assert phase.delay_until_apart(5000, [1000], 20_000, 0) == 0
    assert phase.delay_until_apart(0, [], 20_000) == 0
    assert 0 < phase.delay_until_apart(1000, [1000], 20_000) <= phase.START_GUARD_MS


def test_boundaries_that_fall_together_name_the_later_site() -> None:
    assert phase.masked({"site-1": 1000, "site-2": 5000}, 8000) is None
    assert phase.masked({"site-1": 1000, "site-2": 1100}, 8000) == "site-2"
    assert phase.masked({"site-1": 1000, "site-2": 8_900}, 8000) == "site-2", "across the end of a batch too"
    assert phase.masked({"site-1": 0, "site-2": 4000, "site-3": 100}, 8000) == "site-3"
    assert phase.masked({"site-1": 0}, 8000) is None
