"""LiveRobin's period (section VIII of the paper): 2 to 100 ms over a chain of 1 to 4 map tasks."""

import tempfile
from pathlib import Path

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import ChainSide
from lockstep.bench.report import Report
from lockstep.log.broker import Broker

TASKS = (1, 2, 3, 4)
PERIODS_MS = (2, 5, 10, 50, 100)
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    report = Report("heartbeat", quick)
    grid = mib.Grid("tasks")
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        where = (broker.bootstrap_servers, Path(name))
        heaviest = ChainSide("heaviest", *where, "liverobin", tasks=max(TASKS), period_ms=min(PERIODS_MS))
        with heaviest:
            rate = mib.highest_rate(heaviest, console)
        for round_number in range(mib.ROUNDS[quick]):
            for tasks in TASKS:
                for period in mib.turned(PERIODS_MS, round_number):
                    unique = f"period-{period}-{tasks}-r{round_number + 1}"
                    with ChainSide(unique, *where, "liverobin", tasks=tasks, period_ms=period) as side:
                        grid.add(str(period), tasks, mib.measure(side, rate, quick, report, console))
    grid.finish(report, rate, quick, paper.HEARTBEAT, console)
    return report
