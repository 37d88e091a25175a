"""What a user of the output sees: every output with the moment of its arrival, and what is wrong with it.

The probe reads one side's output (through `lockstep.Consumer` for ours, a plain consumer for others) in a
thread, and keeps (n, produced, arrived, count) of each row `n,t,count` that the count pipeline emits. From
these come latency, the longest gap, and the verdict: what is lost, duplicated or different from the oracle, which
for a count per key is `n // keys + 1` (see `load.py`).
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.errors import LockstepError
from lockstep.observe.percentiles import percentile, percentile_of_sorted

Poll = Callable[[float], Iterable[bytes]]
"""Wait up to so many seconds and return the values of the outputs that arrived, in order."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with the outputs of inputs `first .. first + records`."""

    lost: int
    duplicated: int
    different: int

    @property
    def wrong(self) -> int:
        return self.lost + self.duplicated + self.different


class Probe:
    """Collects one side's outputs until it is closed."""

    def __init__(self, poll: Poll, *, oracle: Callable[[int], int] = lambda n: n // 100 + 1) -> None:
        self._poll = poll
        self._oracle = oracle
        self._rows: list[tuple[int, int, int, int]] = []
        self._seen: set[int] = set()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._collect, name="probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for(
        self, first: int, records: int, timeout: float, abort: Callable[[], None] | None = None
    ) -> bool:
        """Whether every output of inputs `first .. first + records` arrived within `timeout` seconds."""
        wanted = set(range(first, first + records))
        deadline = time.monotonic() + timeout
        while True:
            if self._failure is not None:
                raise LockstepError(f"the probe failed: {self._failure}") from self._failure
            if abort is not None:
                abort()
            wanted -= self._seen
            if not wanted:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    def latencies_ms(self, since: float, until: float) -> list[float]:
        """Sorted latencies of the first arrivals of all inputs that were produced in [since, until)."""
        low, high = int(since * 1e9), int(until * 1e9)
        first: dict[int, float] = {}
        for n, produced, arrived, _ in list(self._rows):
            if low <= produced < high and n not in first:
                first[n] = (arrived - produced) / 1e6
        return sorted(first.values())

    def p99_by_second(self, since: float, seconds: int) -> list[float | None]:
        """The 99th percentile of the latencies of what arrived in each second from `since` on."""
        bins: list[list[float]] = [[] for _ in range(seconds)]
        for _, produced, arrived, _ in list(self._rows):
            second = int((arrived / 1e9 - since) // 1)
            if 0 <= second < seconds:
                bins[second].append((arrived - produced) / 1e6)
        return [round(percentile(one, 99), 1) if one else None for one in bins]

    def longest_gap_ms(self, since: float, until: float) -> float:
        """The longest silence of the output in [since, until], its edges included."""
        low, high = int(since * 1e9), int(until * 1e9)
        arrivals = sorted(arrived for _, _, arrived, _ in list(self._rows) if low <= arrived <= high)
        edges = [low, *arrivals, high]
        return max(later - earlier for earlier, later in itertools.pairwise(edges)) / 1e6

    def seen_since(self, since: float) -> bool:
        """Whether an output arrived after this moment."""
        rows = self._rows
        return bool(rows) and rows[-1][2] > since * 1e9

    def wait_for_newest(self, n: int, timeout: float, abort: Callable[[], None]) -> bool:
        """Whether the newest input, n, was answered within `timeout` seconds (micro-batch answers per key)."""
        return self.wait_for(n, 1, timeout, abort)

    def frontier_behind_s(self, since: float, until: float) -> float:
        """The greatest age that the newest answered input reached in [since, until]."""
        low, high = int(since * 1e9), int(until * 1e9)
        newest = worst = 0
        for _, produced, arrived, _ in list(self._rows):
            if newest and low <= arrived <= high:
                worst = max(worst, arrived - newest)
            newest = max(newest, produced)
        return worst / 1e9

    def verdict(self, first: int, records: int) -> Verdict:
        times: dict[int, int] = {}
        different = 0
        for n, _, _, count in list(self._rows):
            if first <= n < first + records:
                times[n] = times.get(n, 0) + 1
                different += count != self._oracle(n)
        return Verdict(records - len(times), sum(times.values()) - len(times), different)

    def _collect(self) -> None:
        try:
            while not self._stopping.is_set():
                values = self._poll(0.05)
                arrived = time.monotonic_ns()
                for value in values:
                    n, produced, count = value.split(b",")[:3]
                    self._rows.append((int(n), int(produced), arrived, int(count)))
                    self._seen.add(int(n))
        except BaseException as error:
            self._failure = error


def summary(ordered_ms: list[float]) -> dict[str, float]:
    """The percentiles that every latency table shows, of sorted latencies."""
    if not ordered_ms:
        raise LockstepError("no output arrived in the measured window", hint="the side's log says why")
    marks = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
    return {name: round(percentile_of_sorted(ordered_ms, mark), 2) for name, mark in marks.items()}
