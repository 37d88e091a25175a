"""MiB 3 (section VIII of the paper): two sources of very different rates, 10 to 10,000 events a second against 5.

Measured are the events of both. An order must not let the fast source wait for the slow one.
"""

import tempfile
import time
from pathlib import Path

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import CONFIGURATIONS, ChainSide
from lockstep.bench.latency import latency_line
from lockstep.bench.load import Load
from lockstep.bench.probe import summary
from lockstep.bench.report import Report
from lockstep.bench.sides import CONNECTED_SECONDS
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker

RATES = (10, 100, 1000, 5000, 10_000)
SLOW_RATE = 5
SLOW_FIRST = 1_000_000_000
"""The slow source's records are numbered apart from the fast one's."""
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    report = Report("mib3", quick)
    grid = mib.Grid("rate of the fast source")
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        where = (broker.bootstrap_servers, Path(name))
        for round_number in range(mib.ROUNDS[quick]):
            for configuration in mib.turned(CONFIGURATIONS, round_number):
                unique = f"{configuration}-r{round_number + 1}"
                with ChainSide(unique, *where, configuration, partitions=1, sources=2) as side:
                    feeder = Feeder(side)
                    feeder.feed(1000, mib.WARM_UP_SECONDS[quick])
                    for rate in RATES:
                        latencies = feeder.feed(rate, mib.WINDOW_SECONDS[quick])
                        if latencies is None:
                            console.print(f"  {unique}: {rate} ev/s is more than it carries", highlight=False)
                            break
                        console.print(
                            f"  {unique}: {rate} ev/s: {latency_line(summary(latencies))}", highlight=False
                        )
                        grid.add(configuration, rate, latencies)
                    if configuration in ("kazoo", "liverobin"):
                        report.bar(f"{unique}: lost, duplicated or different", feeder.wrong(), "<=", 0)
    grid.finish(report, f"{RATES} against {SLOW_RATE}", quick, paper.MIB3, console)
    return report


class Feeder:
    """Feeds the two topics of a side at rates of their own."""

    def __init__(self, side: ChainSide) -> None:
        self._side = side
        self._produced = [side.produced, SLOW_FIRST]
        self._origins = tuple(self._produced)

    def feed(self, rate: int, seconds: float) -> list[float] | None:
        """Sorted latencies, or None if the outputs were not there a minute after the end."""
        loads = [
            Load(self._side.bootstrap_servers, topic, per_second, seconds, first=first)
            for topic, per_second, first in zip(
                self._side.sources, (rate, SLOW_RATE), self._produced, strict=True
            )
        ]
        began = time.monotonic()
        counts = [running.wait() for running in [load.start(self._side.folder) for load in loads]]
        ended = time.monotonic()
        came = [
            self._side.probe.wait_for(load.first, count, 60, self._side.check)
            for load, count in zip(loads, counts, strict=True)
        ]
        self._produced = [first + count for first, count in zip(self._produced, counts, strict=True)]
        latencies = self._side.probe.latencies_ms(began + CONNECTED_SECONDS, ended)
        if all(came) and not latencies:
            raise LockstepError(f"{self._side.name}: no output arrived in the window", hint=self._side.hint())
        return latencies if all(came) else None

    def wrong(self) -> int:
        """Of everything that was produced so far, how many outputs are lost, duplicated or different."""
        return sum(
            self._side.probe.verdict(first, end - first).wrong
            for first, end in zip(self._origins, self._produced, strict=True)
        )
