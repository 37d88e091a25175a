"""`lockstep run FILE`: run a pipeline as live replicas."""

import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.replicas.job import Job
from lockstep.replicas.job import run as start
from lockstep.replicas.settings import parse_options

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

_REFRESH_SECONDS = 0.25
_EVENTS_SHOWN = 6


@app.command(
    help="Run a pipeline on several sites at once; a site that is killed is not noticed.\n\n"
    "Ctrl-C ends all of it. If this command itself is killed, the sites go on: run it again with the same "
    "name to take them over, or use `--tied` to let them die with it."
)
def run(
    file: Annotated[str, typer.Argument(help="A Python file with a pipeline, or FILE:NAME.")],
    sites: Annotated[int, typer.Option(help="How many sites.")] = 2,
    engine: Annotated[str, typer.Option(help="realtime, microbatch or auto.")] = "auto",
    order: Annotated[
        str,
        typer.Option(help="The order that all sites read in: partition, liverobin, kazoo, inband or auto."),
    ] = "auto",
    coordination: Annotated[
        str | None,
        typer.Option(help="An ensemble for order kazoo, HOST:PORT,...; without it three servers start."),
    ] = None,
    period_ms: Annotated[
        float | None,
        typer.Option(help="Milliseconds between two cuts of order liverobin, or heartbeats of inband."),
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Kafka's address; without it an embedded broker is started.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark's master; local without it.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="spark.NAME=VALUE or kafka.NAME=VALUE; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name; the pipeline's without it.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Let the determinism guard pass this expression; repeatable.")
    ] = None,
    on_divergence: Annotated[str, typer.Option(help="When sites' outputs differ: warn or stop.")] = "warn",
    batch_ms: Annotated[
        int | None, typer.Option(help="Length of a batch; the engine's own without it.")
    ] = None,
    output_partitions: Annotated[int | None, typer.Option(help="Partitions of a new output topic.")] = None,
    clean: Annotated[
        str | None, typer.Option(help="Also write every output once to this topic, exactly once (egress).")
    ] = None,
    digests: Annotated[bool, typer.Option(help="Compare the sites' outputs while they run.")] = True,
    trim_seconds: Annotated[
        float, typer.Option(help="Seconds between trimmings of order and stage topics; 0 keeps everything.")
    ] = 60.0,
    tied: Annotated[
        bool, typer.Option("--tied/--detach", help="Whether sites die with this command if it is killed.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Where the run keeps its state.")] = None,
    run_for: Annotated[float | None, typer.Option("--for", help="Stop after this many seconds.")] = None,
) -> None:
    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    with console.status("starting") as progress:

        def say(text: str) -> None:
            if console.is_terminal:
                progress.update(text)
            else:
                console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)

        job = start(
            file,
            sites=sites,
            engine=engine,  # type: ignore[arg-type]
            order=order,  # type: ignore[arg-type]
            coordination=coordination,
            period_ms=period_ms,
            bootstrap_servers=bootstrap_servers,
            master=master,
            name=name,
            options=parse_options(settings or []),
            allow=allow or (),
            on_divergence=on_divergence,  # type: ignore[arg-type]
            batch_ms=batch_ms,
            output_partitions=output_partitions,
            clean=clean,
            digests=digests,
            trim_seconds=trim_seconds,
            detach=not tied,
            folder=folder,
            wait=False,
            say=say,
        )
    try:
        console.print(f"run [bold]{job.name}[/bold] on {job.bootstrap_servers}, output in topic {job.topic}")
        console.print("order: [bold]{}[/bold] ({})".format(*job.manifest.explain_order()))
        _follow(job, console, time.monotonic() + run_for if run_for is not None else None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
        job.stop()


def _follow(job: Job, console: Console, deadline: float | None) -> None:
    engine_told = running_told = False
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while deadline is None or time.monotonic() < deadline:
            job.check()
            status = job.status()
            if status["engine"] and not engine_told:
                engine_told = True
                console.print(f"engine: [bold]{status['engine']}[/bold] ({status['why']})")
            if not running_told and all(s["state"] == "running" for s in status["sites"].values()):
                running_told = True
                console.print(f"all {len(status['sites'])} sites run; Ctrl-C stops them")
            if console.is_terminal:
                live.update(view(status, job.events()), refresh=True)
            time.sleep(_REFRESH_SECONDS)


def view(status: dict[str, Any], events: list[tuple[float, str]]) -> Group:
    """The sites as a table, and what happened last."""
    table = Table(box=None, pad_edge=False)
    for column in ("site", "state", "batch", "phase", "lag", "outputs up to", "starts", "process"):
        table.add_column(column, justify="left" if column in ("site", "state") else "right")
    latest = status["others"].get("digest", {}).get("latest", {})
    for name, site in status["sites"].items():
        seen = latest.get(name, {})
        table.add_row(
            name,
            Text(site["state"], style="green" if site["state"] == "running" else "yellow"),
            _number(site.get("batch_id")),
            f"{(site.get('phase_ms') or 0) / 1000:.1f} / {(site.get('batch_ms') or 0) / 1000:g} s",
            _number(site.get("lag")),
            ", ".join(f"{shard}:{sn}" for shard, sn in sorted(seen.items())[:4]) or "-",
            _number(site.get("starts")),
            _number(site.get("pid")),
        )
    lines = [
        Text(time.strftime("%H:%M:%S ", time.localtime(at)) + text) for at, text in events[-_EVENTS_SHOWN:]
    ]
    if status["void_order_records"]:
        lines.append(Text(f"order records that did not count: {status['void_order_records']:,}"))
    if status["divergence"]:
        lines.append(Text(status["divergence"], style="bold red"))
    return Group(table, *lines)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
