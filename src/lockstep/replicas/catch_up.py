"""When a site that was started (again) has caught up: only then it can stand in for another.

A site reads from its checkpoint on, so it first repeats what it did before. Until it is within half a second of
the input's end it is `catching up`; then it is `running`, and stays so: a pause at a batch boundary is no return.

No input must keep a site from running for ever. A lag that stops shrinking (the input is as fast as the site), or
that nobody knows (no record came yet, or the readers are on a cluster), counts as caught up after a few seconds.
"""

from collections import deque

CATCHING_UP = "catching up"
RUNNING = "running"
READING = frozenset((CATCHING_UP, RUNNING))
"""States in which a site's query runs: its outputs flow, its boundaries are known."""

TOLERATED_SECONDS = 0.5
PATIENCE_SECONDS = 5.0
UNKNOWN_SECONDS = 2.0
_FEW = 20
"""Records that are always few enough, however slowly they come."""
_RATE_SECONDS = 2.0
_SHRINKS = 0.9
"""A lag shrinks if it gets below this part of itself within `PATIENCE_SECONDS`."""


class CatchUp:
    """Told where a site is, says whether it has caught up. Knows neither clock nor Spark.

    `batch_seconds` is 0 in real time; a micro-batch site is always about two batches behind.
    """

    def __init__(self, began: float, batch_seconds: float = 0.0) -> None:
        self._began = began
        self._tolerated = TOLERATED_SECONDS + 2 * batch_seconds
        self._ends: deque[tuple[float, int]] = deque()
        self._least: int | None = None
        self._shrunk = began
        self._done = False

    def reached(self, now: float, position: int, lag: int | None) -> bool:
        """`position`: records done, of all shards; `lag`: records before their ends, None if not known yet."""
        if not self._done:
            self._done = self._judge(now, position, lag)
        return self._done

    def _judge(self, now: float, position: int, lag: int | None) -> bool:
        if lag is None:
            return self._least is None and now - self._began >= UNKNOWN_SECONDS
        self._ends.append((now, position + lag))
        while now - self._ends[0][0] > _RATE_SECONDS:
            self._ends.popleft()
        if lag <= max(_FEW, self._rate() * self._tolerated):
            return True
        if self._least is None or lag < self._least * _SHRINKS:
            self._least, self._shrunk = lag, now
        return now - self._shrunk >= PATIENCE_SECONDS

    def _rate(self) -> float:
        """Records a second that come in."""
        (first, before), (last, after) = self._ends[0], self._ends[-1]
        return (after - before) / (last - first) if last > first else 0.0
