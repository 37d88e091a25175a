"""Keeping the sites' batch boundaries apart, so that each hides the other's stall (design facts).

At a boundary a site is silent for some hundred milliseconds. Batches run back to back and Spark gives no
control over their phase, but all sites have the same batch length and much the same stall: phases that
start apart stay apart for long. So a site chooses the moment at which it starts its query, and the
supervisor restarts a masked one when two boundaries have drifted together. Pure functions; times are in
milliseconds.
"""

from collections.abc import Mapping, Sequence

GUARD_MS = 900.0
"""Boundaries closer than this may overlap: the longest stall that was measured is 700 ms."""
START_GUARD_MS = 2_500.0
"""A site that starts keeps this distance: when exactly its first batch begins is not in its hand."""
START_MS = 1_500.0
"""What passes, about, between starting a query and its first boundary."""
MAX_STAGGER_MS = 10_000.0
"""With long batches nobody waits for half of one: apart by this much is apart enough."""


def stagger(number: int, sites: int, batch_ms: float) -> float:
    """How long after site 1 the `number`-th site (from 0) starts its first batch."""
    if sites <= 1 or batch_ms <= 0:
        return 0.0
    return number * min(batch_ms / sites, MAX_STAGGER_MS)


def distance(first_ms: float, second_ms: float, batch_ms: float) -> float:
    """How far apart two boundaries are on the circle of one batch."""
    if batch_ms <= 0:
        return 0.0
    apart = (first_ms - second_ms) % batch_ms
    return min(apart, batch_ms - apart)


def delay_until_apart(
    now_ms: float, others_ms: Sequence[float], batch_ms: float, start_ms: float = START_MS
) -> float:
    """The shortest wait after which a query that takes `start_ms` to begin has a boundary of its own.

    `others_ms` are moments of the other sites' boundaries. With batches too short to keep everyone apart
    by the guard, the widest gap is taken.
    """
    if not others_ms or batch_ms <= 0:
        return 0.0
    guard = min(START_GUARD_MS, batch_ms / (2 * (len(others_ms) + 1)))
    step = max(1.0, guard / 4)
    best_delay, best_apart = 0.0, -1.0
    delay = 0.0
    while delay < batch_ms:
        begins = now_ms + delay + start_ms
        apart = min(distance(begins, other, batch_ms) for other in others_ms)
        if apart >= guard:
            return delay
        if apart > best_apart:
            best_delay, best_apart = delay, apart
        delay += step
    return best_delay


def masked(boundaries_ms: Mapping[str, float], batch_ms: float) -> str | None:
    """The site to restart because its boundary falls together with another's, or None.

    Of two, the one that is later in name order: every supervisor would choose the same.
    """
    names = sorted(boundaries_ms)
    guard = min(GUARD_MS, batch_ms / (2 * max(1, len(names))))
    for index in range(len(names) - 1, 0, -1):
        for other in names[:index]:
            if distance(boundaries_ms[names[index]], boundaries_ms[other], batch_ms) < guard / 2:
                return names[index]
    return None
