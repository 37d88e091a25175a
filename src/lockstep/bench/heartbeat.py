"""LiveRobin's period (section VIII of the paper): 2 to 100 ms over a chain of 1 to 4 map tasks."""

from rich.console import Console

from lockstep.bench import mib, paper
from lockstep.bench.chain_sides import ChainSide
from lockstep.bench.report import Report

TASKS = (1, 2, 3, 4)
PERIODS_MS = (2, 5, 10, 50, 100)
plot = mib.plot


def run(quick: bool, console: Console) -> Report:
    def make(name: str, where: mib.Where, period_ms: int, tasks: int) -> ChainSide:
        return ChainSide(name, *where, "liverobin", tasks=tasks, period_ms=period_ms)

    return mib.sweep(
        Report("heartbeat", quick),
        "tasks",
        PERIODS_MS,
        TASKS,
        make,
        heaviest=(min(PERIODS_MS), max(TASKS)),
        paper=paper.HEARTBEAT,
        console=console,
    )
