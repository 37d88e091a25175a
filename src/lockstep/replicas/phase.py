"""Keeping the sites' batch boundaries apart, so that each hides the other's stall (design facts).

At a boundary a site is silent for some hundred milliseconds. Batches run back to back and Spark gives no
control over their phase, but all sites have the same batch length and much the same stall: phases that
start apart stay apart for long. So a site chooses the moment at which it starts its query, and one whose
boundaries have drifted onto another's stops its query and starts it again, in the same JVM: a replay of one
batch, against a minute for a new process. No I/O and no clock here; times are in milliseconds.
"""

from collections import deque
from collections.abc import Mapping, Sequence

GUARD_MS = 900.0
"""Boundaries closer than this may overlap: the longest stall that was measured is 700 ms."""
START_GUARD_MS = 2_500.0
"""A site that starts keeps this distance: when exactly its first batch begins is not in its hand."""
START_MS = 1_500.0
"""What passes, about, until a query that is started, or stopped and started, begins its first batch."""
MAX_STAGGER_MS = 10_000.0
"""With long batches nobody waits for half of one: apart by this much is apart enough."""
BATCHES_TOGETHER = 2
"""Boundaries in a row that fall together before a site moves its own: one is an accident."""
YOUNG_BATCHES = 4
"""Batches after a start, or a move, whose boundaries come when they like."""
YOUNG_GUARD_MS = 1_250.0
"""As long as they do, this is too close. Less where sites have less room."""
_AFTER_MS = 150.0
"""How long after a stall the output is still late."""
_TOLD_MS = 500.0
"""How long a boundary may take to get into the other sites' view."""
_REMEMBERED = 3


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
    guard = min(START_GUARD_MS, 0.75 * batch_ms / (len(others_ms) + 1))
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


class Drift:
    """Told every now and then where the last boundaries of all sites are, says when this site has to move its own.

    Of those that fall together only the last by name moves: every site finds the same. Distances are between
    moments that were seen: the nominal length does not say when the next boundary comes, for each batch takes
    longer by its stall.

    A move costs something just then, so a site that has settled moves only if stalls overlap. Before, while
    nothing is regular yet, it takes care to be well away.
    """

    def __init__(self, site: str, sites: int, batch_ms: float) -> None:
        self._site = site
        self._wide = min(YOUNG_GUARD_MS, batch_ms / (2 * max(1, sites)))
        self._possible = sites > 1 and batch_ms >= 4 * GUARD_MS
        self._seen: dict[str, deque[float]] = {}
        self._judged = 0
        self._own: float | None = None
        self._together = 0

    def noticed(self, now_ms: float, boundaries_ms: Mapping[str, float], stall_ms: float) -> bool:
        """`boundaries_ms` lacks a site that does not run: nobody moves while another is away.

        `stall_ms` is the longest of the sites' last stalls.
        """
        for name, at in boundaries_ms.items():
            seen = self._seen.setdefault(name, deque(maxlen=_REMEMBERED))
            if not seen or at > seen[-1] + GUARD_MS:
                seen.append(at)
        if not self._possible:
            return False
        if self._site not in boundaries_ms:
            self._together = 0
            return False
        own = self._seen[self._site][-1]
        if own == self._own or now_ms < own + self._wide + _TOLD_MS:
            return False
        self._own = own
        self._judged += 1
        near = (
            self._wide if self._judged <= YOUNG_BATCHES else min(self._wide, GUARD_MS, stall_ms + _AFTER_MS)
        )
        met = [
            name
            for name, seen in self._seen.items()
            if name != self._site and any(abs(own - at) < near for at in seen)
        ]
        self._together = self._together + 1 if met and max(met) < self._site else 0
        return self._together >= BATCHES_TOGETHER
