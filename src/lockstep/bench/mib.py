"""What the paper's micro-benchmarks have in common: the rate that all sides carry, one measurement, the table.

The paper fed 5,000 events a second into many machines. Here one machine of two cores runs everything, so the
first thing measured is the highest rate that the heaviest side of an experiment still carries; all sides get that.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.bench.chain_sides import ChainSide
from lockstep.bench.latency import latency_line
from lockstep.bench.paper import P
from lockstep.bench.plots import grouped_boxes
from lockstep.bench.probe import summary
from lockstep.bench.report import Report
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median, quantiles

LADDER = (100, 250, 500, 1000, 2000, 5000)
WARM_UP_SECONDS = {True: 10.0, False: 30.0}
WINDOW_SECONDS = {True: 20.0, False: 120.0}
ROUNDS = {True: 1, False: 5}
CARRIED_MS = 250.0
"""A rate is carried if the median of its last second is below this: a queue that grows soon has more."""
_TRY_SECONDS = 6.0


Where = tuple[str, Path]
"""The broker and the folder of an experiment."""
Make = Callable[[str, Where, Any, int], ChainSide]
"""(name, where, row, value) to a side: a row is a line of the table, the value is what varies."""


def sweep(
    report: Report,
    varied: str,
    rows: Sequence[Any],
    values: Sequence[int],
    make: Make,
    *,
    heaviest: tuple[Any, int],
    paper: Mapping[Any, Mapping[int, P]],
    console: Console,
) -> Report:
    """Measure each row at each value, the rows by turns, at the highest rate that the heaviest side carries."""
    grid = Grid(varied)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        where = (broker.bootstrap_servers, Path(name))
        with make("heaviest", where, *heaviest) as side:
            rate = highest_rate(side, report.quick, console)
        for round_number in range(ROUNDS[report.quick]):
            for value in values:
                for row in turned(rows, round_number):
                    with make(f"{row}-{value}-r{round_number + 1}", where, row, value) as side:
                        grid.add(str(row), value, measure(side, rate, report.quick, report, console))
    grid.finish(report, rate, report.quick, paper, console)
    return report


def highest_rate(side: ChainSide, quick: bool, console: Console) -> int:
    """Climb the ladder on a side that is as warm as one that is measured; the lowest rung if it carries none."""
    side.feed(LADDER[0], WARM_UP_SECONDS[quick])
    carried = 0
    for rate in LADDER:
        _, ended = side.feed(rate, _TRY_SECONDS)
        latencies = side.probe.latencies_ms(ended - 1.0, ended)
        middle = median(latencies) if latencies else float("inf")
        console.print(f"  {rate} ev/s: median of the last second {middle:.0f} ms", highlight=False)
        if middle > CARRIED_MS:
            break
        carried = rate
    words = f"highest rate that the heaviest side carries: {carried} ev/s"
    console.print(words if carried else f"{words}; {LADDER[0]} are measured", highlight=False)
    return carried or LADDER[0]


def measure(side: ChainSide, rate: int, quick: bool, report: Report, console: Console) -> list[float]:
    """Sorted latencies of one side in its window. What a replicated side does wrong becomes a bar."""
    side.feed(rate, WARM_UP_SECONDS[quick])
    began, ended = side.feed(rate, WINDOW_SECONDS[quick])
    latencies = side.probe.latencies_ms(began, ended)
    console.print(f"  {side.name}: {latency_line(summary(latencies))}", highlight=False)
    if side.configuration in ("kazoo", "liverobin"):
        wrong = side.probe.verdict(0, side.produced).wrong
        report.bar(f"{side.name}: lost, duplicated or different", wrong, "<=", 0)
    return latencies


class Grid:
    """Latencies by configuration and by what is varied."""

    def __init__(self, varied: str) -> None:
        self.varied = varied
        self._samples: dict[tuple[str, int], list[list[float]]] = {}

    def add(self, configuration: str, value: int, latencies: list[float]) -> None:
        self._samples.setdefault((configuration, value), []).append(latencies)

    def figures(self) -> dict[str, dict[str, dict[str, float]]]:
        figures: dict[str, dict[str, dict[str, float]]] = {}
        for (configuration, value), rounds in self._samples.items():
            summaries = [summary(one) for one in rounds]
            figures.setdefault(configuration, {})[str(value)] = {
                mark: median([one[mark] for one in summaries]) for mark in summaries[0]
            }
        return figures

    def samples(self) -> dict[str, dict[str, list[float]]]:
        samples: dict[str, dict[str, list[float]]] = {}
        for (configuration, value), rounds in self._samples.items():
            samples.setdefault(configuration, {})[str(value)] = quantiles(rounds, 200)
        return samples

    def finish(
        self,
        report: Report,
        rate: int | str,
        quick: bool,
        paper: Mapping[Any, Mapping[int, P]],
        console: Console,
    ) -> None:
        """Keep the figures in the report and print them beside the paper's."""
        figures = self.figures()
        report.figures["settings"] = {
            "rate": rate,
            "varied": self.varied,
            "warm_up_seconds": WARM_UP_SECONDS[quick],
            "window_seconds": WINDOW_SECONDS[quick],
            "rounds": ROUNDS[quick],
        }
        report.figures["latency_ms"] = figures
        report.figures["samples_ms"] = self.samples()
        values = sorted({int(value) for one in figures.values() for value in one})
        table = Table(
            title=f"p50 / p99 in ms by {self.varied}; the paper's in brackets", title_justify="left"
        )
        table.add_column("")
        for value in values:
            table.add_column(str(value), justify="right")
        for configuration, by_value in figures.items():
            theirs = paper.get(configuration) or paper.get(_number(configuration)) or {}
            table.add_row(configuration, *(_cell(by_value.get(str(v)), theirs.get(v)) for v in values))
        console.print(table)


def plot(report: Report, folder: Path) -> list[Path]:
    varied = report.figures["settings"]["varied"]
    path = folder / f"{report.experiment}.png"
    return [grouped_boxes(report.figures["samples_ms"], varied, path)]


def turned(items: Sequence[Any], round_number: int) -> list[Any]:
    """The items in an order that rotates with the rounds."""
    turn = round_number % len(items)
    return [*items[turn:], *items[:turn]]


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _cell(ours: Mapping[str, float] | None, theirs: P | None) -> str:
    mine = f"{ours['p50']:.1f} / {ours['p99']:.0f}" if ours else "-"
    return mine + (f" ({theirs[0]:.1f} / {theirs[1]:.0f})" if theirs else "")
