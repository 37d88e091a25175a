"""`lockstep setup`: fetch the pinned jars, compile our own Java, record its classes.

A second run has nothing to do.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lockstep import home
from lockstep.errors import UsageError
from lockstep.setup import archive, build, jars, java

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command(
    help="Fetch the pinned jars, compare them with their checksums, compile the Java source and sink, "
    "and rehearse a run once, so that sites and brokers start faster.\n\n"
    "It is safe to interrupt and to repeat: what is already good stays. "
    "`LOCKSTEP_HOME` moves the folder; `LOCKSTEP_MAVEN_MIRROR` names another Maven repository."
)
def setup(
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help=f"Fetch this set of jars only: {', '.join(jars.SETS)}. May be repeated."),
    ] = None,
    relock: Annotated[
        bool,
        typer.Option("--relock", help="Write what the pins resolve to into jars.lock (for maintainers)."),
    ] = False,
) -> None:
    for name in sets or ():
        if name not in jars.SETS:
            raise UsageError(f"no set of jars is called {name!r}", hint=f"one of: {', '.join(jars.SETS)}")
    started = time.monotonic()
    console = Console(stderr=True)
    wanted = tuple(sets or jars.DEFAULT_SETS)
    if sets is None and build.outdated() and home.checkout() is not None:
        java.find(compiler=True)  # what would fail at the end fails before the downloads
    if relock:
        for name in wanted:
            _with_progress(console, name, relock=True)
    for name in wanted:
        if jars.missing(name):
            _with_progress(console, name)
    if sets is None and build.outdated():
        with _saying(console, "compiling jvm/"):
            build.build()
    if sets is None and archive.outdated():
        with _saying(console, "rehearsing a run, so that sites and brokers start faster (about a minute)"):
            problem = archive.record()
        if problem:
            console.print(f"that failed, and is not needed: {problem}")
    seconds = time.monotonic() - started
    if seconds > 1:
        console.print(f"set-up is complete ({seconds:.0f} s)")


@contextlib.contextmanager
def _saying(console: Console, what: str) -> Iterator[None]:
    """Say what goes on: while it does on a terminal, before it elsewhere."""
    if not console.is_terminal:
        console.print(what)
    with console.status(what):
        yield


def _with_progress(console: Console, name: str, *, relock: bool = False) -> None:
    found = java.find()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jars"),
        TimeElapsedColumn(),
    )
    known = len(jars.locked(name)) or None
    if not console.is_terminal:
        console.print(f"fetching the {name} jars")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"fetching {name}", total=known)
        act = jars.relock if relock else jars.fetch
        act(name, java=found, progress=lambda arrived: progress.update(task, completed=arrived))
    console.print(f"{'locked' if relock else 'fetched'} the {name} jars ({len(jars.locked(name))} files)")
