"""`lockstep sim`: run a protocol in the simulator over many seeds, or replay one seed exactly.

The output of `--seed` depends on the seed and the code alone: no wall clock, no speed, nothing random.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from lockstep import process
from lockstep.errors import LockstepError, UsageError
from lockstep.observe.progress import Progress
from lockstep.sim.runner import report, run_seed
from lockstep.sim.scenario import SCENARIOS, Scenario, scenario_class

app = typer.Typer(add_completion=False)

_REPORT_EVERY = 10
_POLL_SECONDS = 0.05
MAX_JOBS = 64


class _Part(msgspec.Struct):
    """What a sweep has done since its last report."""

    seeds: int
    events: int
    broken: list[int]


@app.command()
def sim(
    protocol: Annotated[str, typer.Argument(help=f"One of: {', '.join(SCENARIOS)}.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 1000,
    start_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Replay this one seed, with its trace.")] = None,
    bug: Annotated[str | None, typer.Option(help="Plant a bug, to see that it is found.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the whole trace of a replay here.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Lines of the trace to print.")] = 60,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Processes to share the work.")] = 1,
    keep_going: Annotated[
        bool, typer.Option(help="Count all broken seeds; do not end at the first.")
    ] = False,
    report_parts: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run a protocol in the simulator over many seeds, or replay one."""
    kind = scenario_class(protocol)
    if bug is not None and bug not in kind.bugs:
        known = f"choose one of: {', '.join(kind.bugs)}" if kind.bugs else f"{protocol} has none to plant"
        raise UsageError(f"{protocol} has no bug called {bug!r}", hint=known)
    if seed is not None:
        if _replay(kind, protocol, seed, bug, trace, last):
            raise typer.Exit(1)
        return
    if report_parts:
        for part in _sweep(kind, range(start_seed, start_seed + seeds * jobs, jobs), bug):
            sys.stdout.write(msgspec.json.encode(part).decode() + "\n")
            sys.stdout.flush()
        return
    parts = (
        _sweep(kind, range(start_seed, start_seed + seeds), bug)
        if jobs == 1
        else _shared_sweep(protocol, seeds, start_seed, bug, jobs)
    )
    broken = _watch(parts, protocol, seeds, keep_going=keep_going)
    if not broken:
        return
    first = min(broken)
    if keep_going:
        typer.echo(f"broken seeds: {', '.join(map(str, sorted(broken)[:50]))}")
    typer.echo("")
    _replay(kind, protocol, first, bug, trace, last)
    again = f"lockstep sim {protocol} --seed {first}" + (f" --bug {bug}" if bug else "")
    typer.echo(f"\nreplay it with: {again} --trace FILE")
    raise typer.Exit(1)


def _replay(
    kind: type[Scenario], protocol: str, seed: int, bug: str | None, trace: Path | None, last: int
) -> bool:
    """Run one seed again, with a trace; true if a promise was broken."""
    outcome = run_seed(kind, seed, bug=bug, trace=True)
    if trace is not None:
        try:
            trace.write_text(report(outcome, protocol, bug=bug, last=None))
        except OSError as error:
            raise LockstepError(
                f"cannot write the trace to {trace}: {error.strerror}", hint="name another file"
            ) from error
    typer.echo(report(outcome, protocol, bug=bug, last=last), nl=False)
    return bool(outcome.violations)


def _sweep(kind: type[Scenario], seeds: range, bug: str | None) -> Iterator[_Part]:
    part = _Part(0, 0, [])
    for number, seed in enumerate(seeds, start=1):
        outcome = run_seed(kind, seed, bug=bug)
        part.seeds += 1
        part.events += outcome.events
        if outcome.violations:
            part.broken.append(seed)
        if outcome.violations or number % _REPORT_EVERY == 0 or number == len(seeds):
            yield part
            part = _Part(0, 0, [])


def _shared_sweep(protocol: str, seeds: int, start_seed: int, bug: str | None, jobs: int) -> Iterator[_Part]:
    """The same, by several processes, each of which takes every `jobs`-th seed."""
    with tempfile.TemporaryDirectory(prefix="lockstep-sim-") as folder:
        logs = [Path(folder) / f"{number}.jsonl" for number in range(jobs)]
        children = []
        try:
            for number, log in enumerate(logs):
                share = len(range(number, seeds, jobs))
                if share == 0:
                    continue
                command = [sys.executable, "-m", "lockstep", "sim", protocol, "--report-parts"]
                command += ["--jobs", str(jobs), "--start-seed", str(start_seed + number)]
                command += ["--seeds", str(share)] + (["--bug", bug] if bug else [])
                children.append(process.launch(command, log=log))
            places = [0] * jobs
            running = True
            while running:
                running = any(child.poll() is None for child in children)
                for number, log in enumerate(logs):
                    text = log.read_bytes()[places[number] :] if log.exists() else b""
                    whole = text[: text.rfind(b"\n") + 1]
                    places[number] += len(whole)
                    for line in whole.splitlines():
                        try:
                            yield msgspec.json.decode(line, type=_Part)
                        except msgspec.MsgspecError as error:
                            raise LockstepError(
                                f"a worker failed: {line.decode(errors='replace')}",
                                hint="run with --jobs 1 --debug to see why",
                            ) from error
                if running:
                    time.sleep(_POLL_SECONDS)
        finally:
            for child in children:
                process.kill(child)


def _watch(parts: Iterator[_Part], protocol: str, seeds: int, *, keep_going: bool) -> list[int]:
    """Show progress; the broken seeds (only the first one found unless `keep_going`)."""
    console = Console(stderr=True)
    broken: list[int] = []
    done, events = 0, 0
    began = time.perf_counter()
    with Progress(f"sim {protocol}", seeds, console) as progress:
        for part in parts:
            done += part.seeds
            events += part.events
            broken += part.broken
            elapsed = time.perf_counter() - began
            progress.update(done, f"{events / elapsed:,.0f} events/s")
            if broken and not keep_going:
                break
    elapsed = time.perf_counter() - began
    verdict = f"{len(broken)} broken" if broken else "every promise was kept in all of them"
    typer.echo(
        f"{protocol}: {done} seeds, {events:,} simulated events in {elapsed:.1f} s "
        f"({events / elapsed:,.0f} events/s): {verdict}"
    )
    return broken
