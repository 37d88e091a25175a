"""MiB 1 (section VIII of the paper): a chain of 1 to 4 map tasks over 2 partitions, five configurations.

Each task is a replicated query of its own, with a topic between two, so that Spark cannot fuse them.
"""

import tempfile
from pathlib import Path

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import CONFIGURATIONS, ChainSide
from lockstep.bench.report import Report
from lockstep.log.broker import Broker

TASKS = (1, 2, 3, 4)
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    report = Report("mib1", quick)
    grid = mib.Grid("tasks")
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        where = (broker.bootstrap_servers, Path(name))
        with ChainSide("heaviest", *where, "kazoo", tasks=max(TASKS)) as heaviest:
            rate = mib.highest_rate(heaviest, console)
        for round_number in range(mib.ROUNDS[quick]):
            for tasks in TASKS:
                for configuration in mib.turned(CONFIGURATIONS, round_number):
                    unique = f"{configuration}-{tasks}-r{round_number + 1}"
                    with ChainSide(unique, *where, configuration, tasks=tasks) as side:
                        grid.add(configuration, tasks, mib.measure(side, rate, quick, report, console))
    grid.finish(report, rate, quick, paper.MIB1, console)
    return report
