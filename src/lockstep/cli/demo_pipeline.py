"""The demo of the product: a pipeline on two live sites, one killed with -9 under load, and a verdict.

What a restart would have cost is measured in the same run, on the same machine: plain Spark with the same
pipeline, killed and started again at once on its checkpoint.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep import home
from lockstep.bench.failover import AFTER_SECONDS, RECOVERY_SECONDS, all_running, passive_gaps, wait_until
from lockstep.bench.probe import Probe, Verdict, summary
from lockstep.bench.sides import LockstepSide
from lockstep.cli.run import view
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker

RATE = 1000
BEFORE_SECONDS = 15.0
"""Load before the kill, warm-up included."""


def run(console: Console, bootstrap_servers: str | None) -> None:
    """Raises unless nothing was lost, duplicated or different."""
    folder = home.runs_folder() / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    if bootstrap_servers is not None:
        _show(console, bootstrap_servers, folder)
    else:
        with console.status("starting the embedded Kafka broker"):
            broker = Broker(folder / "broker").start()
        try:
            _show(console, broker.bootstrap_servers, folder)
        finally:
            broker.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _show(console: Console, bootstrap_servers: str, folder: Path) -> None:
    began = time.monotonic()
    unique = time.strftime("demo-%H%M%S")
    side = LockstepSide(unique, bootstrap_servers, folder, sites=2)
    with contextlib.ExitStack() as stack:
        with console.status("starting two sites, each a Spark application of its own (about half a minute)"):
            stack.enter_context(side)
        engine, why = side.job.engine()
        console.print(f"two sites run after {time.monotonic() - began:.0f} s; engine: {engine} ({why})")
        gap, verdict = _kill_under_load(console, side)
        figures = summary(side.probe.latencies_ms(began, time.monotonic()))
    with console.status("what would a restart have cost? plain Spark, killed and restarted at once"):
        restart = passive_gaps(bootstrap_servers, folder, 1, name=f"{unique}-plain", say=lambda text: None)[0]
    console.print(_closing(side.produced, verdict, gap, restart, figures))
    if verdict.wrong:
        raise LockstepError(
            f"{verdict.lost} outputs lost, {verdict.duplicated} duplicated, {verdict.different} different",
            hint=f"the sites' logs and checkpoints are in {folder}",
        )


def _kill_under_load(console: Console, side: LockstepSide) -> tuple[float, Verdict]:
    load = side.load(RATE, 600).start(side.folder)
    started = time.monotonic()
    killed = 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch(done: Callable[[], bool], seconds: float, what: str) -> None:
            def look() -> bool:
                side.check()
                live.update(_view(side, killed), refresh=True)
                return done()

            wait_until(look, seconds, what)

        watch(lambda: time.monotonic() > started + BEFORE_SECONDS, 60, "the load")
        killed = time.monotonic()
        pid = side.job.kill("site-2")
        console.print(f"kill -9 of site-2 (process {pid}) at {RATE} events a second")
        watch(lambda: time.monotonic() > killed + AFTER_SECONDS, 60, "the time after the kill")
        gap = side.probe.longest_gap_ms(killed, killed + AFTER_SECONDS)
        watch(lambda: all_running(side), RECOVERY_SECONDS, "the return of site-2")
        console.print(f"site-2 is back from its checkpoint after {time.monotonic() - killed:.0f} s")
        count = load.finish()
        side.probe.wait_for(side.produced, count, 60, side.check)
    side.produced += count
    return gap, side.probe.verdict(0, side.produced)


def _view(side: LockstepSide, killed: float) -> Group:
    return Group(view(side.job.status(), side.job.events()), Text(_recent(side.probe, killed)))


def _recent(probe: Probe, killed: float) -> str:
    now = time.monotonic()
    latencies = probe.latencies_ms(now - 5, now - 0.5)
    if not latencies:
        return "output: waiting for the first records"
    figures = summary(latencies)
    text = (
        f"output: {len(latencies) / 4.5:,.0f} rows/s, latency p50 {figures['p50']:.1f} ms, "
        f"p99 {figures['p99']:.1f} ms, longest silence of the last 5 s {probe.longest_gap_ms(now - 5, now):.0f} ms"
    )
    return text + (f"; site killed {now - killed:.0f} s ago" if killed else "")


def _closing(outputs: int, verdict: Verdict, gap: float, restart: float, figures: dict[str, float]) -> Table:
    table = Table(title="verdict", title_justify="left", show_header=False)
    table.add_row("outputs expected", f"{outputs:,}")
    for name, count in (
        ("lost", verdict.lost),
        ("duplicated", verdict.duplicated),
        ("different", verdict.different),
    ):
        table.add_row(name, Text(f"{count:,}", style="bold red" if count else "green"))
    table.add_row("latency, whole run", f"p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms")
    table.add_row("longest silence in the 5 s after the kill", f"{gap:,.0f} ms")
    table.add_row("the same with plain Spark and an instant restart", f"{restart:,.0f} ms")
    return table
