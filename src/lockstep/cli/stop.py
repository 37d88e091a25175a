"""`lockstep stop NAME`: end a run that lives on by itself."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lockstep import home, process
from lockstep.errors import LockstepError, UsageError
from lockstep.replicas.layout import ProcessFolder, RunFolder, check_name
from lockstep.replicas.supervisor import take_lock

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

_SUPERVISOR_SECONDS = 30.0


@app.command(help="End all sites of a run, its egress and its broker. Its checkpoints stay.")
def stop(
    name: Annotated[str, typer.Argument(help="The run's name.")],
    folder: Annotated[Path | None, typer.Option(help="Where the run keeps its state.")] = None,
) -> None:
    console = Console()
    run = RunFolder((folder or home.runs_folder() / check_name(name)).absolute())
    if not run.settings.is_file():
        raise UsageError(f"there is no run called {name}", hint=f"looked in {run.path}")
    _end_supervisor(run, console)
    with take_lock(run):
        ended = [one.path.name for one in _processes(run) if one.live_pid() is not None]
        for one in _processes(run):
            one.end(grace=5)
    console.print(f"ended: {', '.join(ended)}" if ended else f"nothing of run {name} was running")


def _end_supervisor(run: RunFolder, console: Console) -> None:
    """A supervisor would start again what we end: ask it to end all of it itself."""
    try:
        take_lock(run).close()
        return
    except LockstepError:
        holder = int(run.lock.read_text().strip() or 0)
    if holder > 1:
        console.print(f"asking its supervisor (process {holder}) to stop it")
        os.kill(holder, signal.SIGTERM)
        if not process.wait_gone(holder, _SUPERVISOR_SECONDS):
            raise LockstepError(f"its supervisor (process {holder}) does not end", hint=f"kill -9 {holder}")


def _processes(run: RunFolder) -> list[ProcessFolder]:
    """In the order in which they end: the broker last."""
    sites = run.path / "sites"
    found = [ProcessFolder(path) for path in sorted(sites.iterdir())] if sites.is_dir() else []
    return [*found, *run.others(), run.egress, run.broker]
