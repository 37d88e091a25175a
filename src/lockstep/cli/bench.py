"""`lockstep bench NAME`: run an experiment and compare it with what it must reach."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lockstep.bench.report import Report
from lockstep.errors import UsageError

EXPERIMENTS: dict[str, str] = {
    "latency": "Plain Spark beside Lockstep with 1, 2 and 3 sites in calm weather; deduplication apart.",
    "failover": "kill -9 of sites beside a plain Spark that is restarted; micro-batch at 42,000 events a second.",
    "order": "Two topics under LiveRobin and KaZoo beside plain Spark; the source alone; what idle orders cost.",
    "order-faults": "kill -9 of a site, a generator, a leader and a broker of three under both orders.",
    "mib1": "The paper's MiB 1: a chain of 1 to 4 tasks, five configurations.",
    "mib2": "The paper's MiB 2: one task that merges 1 to 4 partitions, five configurations.",
    "mib3": "The paper's MiB 3: two sources, 10 to 10,000 events a second against 5, five configurations.",
    "heartbeat": "LiveRobin's period from 2 to 100 ms over a chain of 1 to 4 tasks.",
    "bettercloud": "The paper's BetterCloud at 1,000 and 5,000 events a second, a kill in every configuration.",
    "coordination": "Leader kills at 3, 5 and 7 servers, each variant beside ZooKeeper 3.9.5; throughput, memory.",
    "coordination-kafka": "Kafka 3.9.1 on our ensemble and on ZooKeeper 3.9.5 while leaders and brokers die.",
    "coordination-soak": "Ten minutes of full load over a million nodes, and no election.",
    "host": "Messages per second and latency of the real protocol host between two processes.",
}
"""Name -> one line. Each `lockstep.bench.<name>` has `run(quick: bool, console: Console) -> Report` and,
where there is something to draw, `plot(report: Report, folder: Path) -> list[Path]`."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@dataclass(frozen=True)
class _Outputs:
    json: Path | None
    plot: Path | None


@app.command(
    help="Run an experiment; exit 0 only if every bar is met.\n\n"
    + "\n\n".join(f"- **{name}**: {text}" for name, text in EXPERIMENTS.items())
)
def bench(
    name: Annotated[str, typer.Argument(help="The experiment, or `all`.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: minutes instead of an hour.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every figure, with the machine, to this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the plots into this folder.")] = None,
) -> None:
    if name != "all" and name not in EXPERIMENTS:
        raise UsageError(f"no experiment is called {name!r}", hint=f"one of: {', '.join(EXPERIMENTS)}, all")
    console = Console()
    outputs = _Outputs(json_file, plot)
    names = list(EXPERIMENTS) if name == "all" else [name]
    met = [_run_one(one, quick, _outputs_of(outputs, one, len(names) > 1), console) for one in names]
    if not all(met):
        raise typer.Exit(1)


def _outputs_of(outputs: _Outputs, name: str, several: bool) -> _Outputs:
    """With `all`, every experiment gets a JSON file of its own beside the one that was named."""
    if not several or outputs.json is None:
        return outputs
    return _Outputs(outputs.json.with_name(f"{outputs.json.stem}-{name}{outputs.json.suffix}"), outputs.plot)


def _run_one(name: str, quick: bool, outputs: _Outputs, console: Console) -> bool:
    module = importlib.import_module(f"lockstep.bench.{name.replace('-', '_')}")
    report: Report = module.run(quick, console)
    report.show(console)
    if outputs.json is not None:
        report.write(outputs.json)
        console.print(f"figures: {outputs.json}")
    if outputs.plot is not None and hasattr(module, "plot"):
        outputs.plot.mkdir(parents=True, exist_ok=True)
        for path in module.plot(report, outputs.plot):
            console.print(f"plot: {path}")
    return report.met
