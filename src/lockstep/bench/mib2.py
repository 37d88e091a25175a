"""MiB 2 (section VIII of the paper): one map task that merges 1 to 4 partitions, five configurations."""

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import CONFIGURATIONS, ChainSide, Configuration
from lockstep.bench.report import Report

PARTITIONS = (1, 2, 3, 4)
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    def make(name: str, where: mib.Where, configuration: Configuration, partitions: int) -> ChainSide:
        return ChainSide(name, *where, configuration, partitions=partitions)

    return mib.sweep(
        Report("mib2", quick),
        "partitions",
        CONFIGURATIONS,
        PARTITIONS,
        make,
        heaviest=("kazoo", max(PARTITIONS)),
        paper=paper.MIB2,
        console=console,
    )
