"""What every experiment hands back: figures, the bars they must reach, and how both are shown.

A **bar** is a figure with a limit. `lockstep bench NAME` prints each bar with what came out, whatever it
is, and exits 0 only if all are met. `--json FILE` keeps everything, with the machine it was measured on.
"""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console
from rich.table import Table

from lockstep import __version__


@dataclass(frozen=True)
class Bar:
    """`figure` must be at most (or at least) `limit`."""

    name: str
    figure: float
    sense: Literal["<=", ">="]
    limit: float
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.figure <= self.limit if self.sense == "<=" else self.figure >= self.limit


@dataclass
class Report:
    """One run of an experiment."""

    experiment: str
    quick: bool
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Everything measured, JSON-able: percentiles, series, settings such as the batch length."""
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def bar(self, name: str, figure: float, sense: Literal["<=", ">="], limit: float, unit: str = "") -> Bar:
        bar = Bar(name, figure, sense, limit, unit)
        self.bars.append(bar)
        return bar

    @property
    def met(self) -> bool:
        return all(bar.met for bar in self.bars)

    def show(self, console: Console) -> None:
        table = Table(
            title=f"{self.experiment}{' (quick)' if self.quick else ''}: bars", title_justify="left"
        )
        table.add_column("bar")
        table.add_column("measured", justify="right")
        table.add_column("must be", justify="right")
        table.add_column("")
        for bar in self.bars:
            table.add_row(
                bar.name,
                f"{_figure(bar.figure)} {bar.unit}".rstrip(),
                f"{bar.sense} {_figure(bar.limit)} {bar.unit}".rstrip(),
                "[green]met[/]" if bar.met else "[red]missed[/]",
            )
        console.print(table)
        for note in self.notes:
            console.print(note)
        console.print(f"machine: {machine()}")

    def write(self, path: Path) -> None:
        document = {
            "experiment": self.experiment,
            "quick": self.quick,
            "version": __version__,
            "machine": machine(),
            "started": self.started,
            "seconds": time.time() - self.started,
            "met": self.met,
            "bars": [{**asdict(bar), "met": bar.met} for bar in self.bars],
            "figures": self.figures,
            "notes": self.notes,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")


def machine() -> str:
    """One line on the machine, for every figure that leaves it."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
