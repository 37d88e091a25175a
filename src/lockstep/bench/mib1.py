"""MiB 1 (section VIII of the paper): a chain of 1 to 4 map tasks over 2 partitions, five configurations.

Each task is a replicated query of its own, with a topic between two, so that Spark cannot fuse them.
"""

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import CONFIGURATIONS, ChainSide, Configuration
from lockstep.bench.report import Report

TASKS = (1, 2, 3, 4)
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    def make(name: str, where: mib.Where, configuration: Configuration, tasks: int) -> ChainSide:
        return ChainSide(name, *where, configuration, tasks=tasks)

    return mib.sweep(
        Report("mib1", quick),
        "tasks",
        CONFIGURATIONS,
        TASKS,
        make,
        heaviest=("kazoo", max(TASKS)),
        paper=paper.MIB1,
        console=console,
    )
