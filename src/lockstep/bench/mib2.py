"""MiB 2 (section VIII of the paper): one map task that merges 1 to 4 partitions, five configurations."""

import tempfile
from pathlib import Path

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import CONFIGURATIONS, ChainSide
from lockstep.bench.report import Report
from lockstep.log.broker import Broker

PARTITIONS = (1, 2, 3, 4)
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    report = Report("mib2", quick)
    grid = mib.Grid("partitions")
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        where = (broker.bootstrap_servers, Path(name))
        with ChainSide("heaviest", *where, "kazoo", partitions=max(PARTITIONS)) as heaviest:
            rate = mib.highest_rate(heaviest, console)
        for round_number in range(mib.ROUNDS[quick]):
            for partitions in PARTITIONS:
                for configuration in mib.turned(CONFIGURATIONS, round_number):
                    unique = f"{configuration}-{partitions}-r{round_number + 1}"
                    with ChainSide(unique, *where, configuration, partitions=partitions) as side:
                        grid.add(configuration, partitions, mib.measure(side, rate, quick, report, console))
    grid.finish(report, rate, quick, paper.MIB2, console)
    return report
