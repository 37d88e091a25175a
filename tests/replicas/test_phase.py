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


APART, AHEAD, NEAR = (
    {"site-1": 0.0, "site-2": 4000.0},
    {"site-1": 0.0, "site-2": 700.0},
    {"site-1": 0.0, "site-2": 200.0},
)


def moves(batches: list[dict[str, float]], batch: float = 8000, stall: float = 200) -> dict[str, int]:
    """After how many batches each site moves, told every second what all of them can see by then (0: never)."""
    names = sorted({name for one in batches for name in one})
    drifts = {name: phase.Drift(name, len(names), batch) for name in names}
    moved = dict.fromkeys(names, 0)
    begun = {name: [n * batch + one[name] for n, one in enumerate(batches)] for name in names}
    for now in range(0, int(len(batches) * batch), 1000):
        seen = {
            name: max((at for at in moments if at <= now), default=None) for name, moments in begun.items()
        }
        known = {name: at for name, at in seen.items() if at is not None}
        everyone = known if len(known) == len(names) else {}
        for name, drift in drifts.items():
            if drift.noticed(now, everyone, stall) and not moved[name]:
                moved[name] = int(now // batch) + 1
    return moved


def test_stalls_that_overlap_move_the_later_site_and_one_meeting_moves_nobody() -> None:
    settled = [APART] * phase.YOUNG_BATCHES
    assert moves(settled * 2) == {"site-1": 0, "site-2": 0}
    assert moves(settled + [NEAR] * 3) == {"site-1": 0, "site-2": len(settled) + phase.BATCHES_TOGETHER}
    assert moves([*settled, NEAR, APART, NEAR, APART]) == {"site-1": 0, "site-2": 0}, "not in a row"
    swapped = [{"site-1": 200.0, "site-2": 0.0}] * 3
    assert moves(settled + swapped)["site-2"] == len(settled) + 2, "whoever comes first"
    assert moves([NEAR] * 5, batch=3000) == {"site-1": 0, "site-2": 0}, "batches are too short to keep apart"


def test_a_settled_site_does_not_mind_boundaries_that_are_close_as_long_as_stalls_are_short() -> None:
    settled = [APART] * phase.YOUNG_BATCHES
    assert moves(settled + [AHEAD] * 3)["site-2"] == 0
    assert moves(settled + [AHEAD] * 3, stall=600)["site-2"] == len(settled) + 2


def test_a_young_site_takes_care_to_be_well_away() -> None:
    assert moves([AHEAD] * 5) == {"site-1": 0, "site-2": phase.BATCHES_TOGETHER}


def test_of_three_that_fall_together_only_the_last_moves_at_first() -> None:
    assert moves([{"site-1": 0.0, "site-2": 100.0, "site-3": 200.0}] * 3) == {
        "site-1": 0,
        "site-2": 0,
        "site-3": 2,
    }
    assert moves([{"site-1": 0.0, "site-2": 4000.0, "site-3": 100.0}] * 3)["site-3"] == 2


def test_a_stall_that_lengthens_each_batch_does_not_count_as_a_meeting() -> None:
    """Batches of 5 s that take 6.2: by the nominal length, 4.8 s after a boundary would be near the next one."""
    drift = phase.Drift("site-2", 2, 5000)
    boundaries = {"site-1": [6200.0 * n for n in range(6)], "site-2": [6200.0 * n + 4800 for n in range(6)]}
    for now in range(5000, 32_000, 500):
        seen = {name: max(at for at in moments if at <= now) for name, moments in boundaries.items()}
        assert not drift.noticed(now, seen, 1200)


def test_nobody_moves_while_another_site_is_away() -> None:
    for away in (False, True):
        drift = phase.Drift("site-2", 2, 8000)
        moved = []
        for number in range(5):
            at = number * 8000.0
            moved.append(drift.noticed(at + 2000, {"site-1": at, "site-2": at}, 200))
            moved.append(drift.noticed(at + 4000, {} if away else {"site-1": at, "site-2": at}, 200))
        assert any(moved) != away
