"""kill -9 of a site, again and again: what an output consumer notices, beside a plain Spark that is restarted.

A site is two processes, the Python driver and the JVM; one, the other or both are killed, at random phases of the
batch. After each kill the longest silence of the deduplicated output in the next 5 s is taken. At the end every
single output is compared with the oracle. The passive side is plain Spark on its checkpoint, restarted at once:
its gap lasts until output returns.
"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from lockstep.bench.plots import gap_dots
from lockstep.bench.report import Report
from lockstep.bench.sides import LockstepSide, PlainSide
from lockstep.bench.throughput import measure as measure_throughput
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median
from lockstep.replicas.catch_up import RUNNING
from lockstep.spark.engine import REALTIME_BATCH_MS

RATE = 1000
AFTER_SECONDS = 5.0
WARM_SECONDS = 30.0
"""Several sites that start together on two cores compile their code for about as long."""
KILLS = {True: 5, False: 20}
PASSIVE_KILLS = {True: 1, False: 3}
RECOVERY_SECONDS = 240.0
Part = Literal["jvm", "driver", "both"]
PARTS: tuple[Part, ...] = ("jvm", "driver", "both")


def run(quick: bool, console: Console) -> Report:
    report = Report("failover", quick)
    rng = random.Random(20)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        folder = Path(name)
        gaps: dict[str, list[float]] = {}
        calm: dict[str, float] = {}
        gaps["passive"] = passive_gaps(
            broker.bootstrap_servers, folder, PASSIVE_KILLS[quick], say=console.print
        )
        for sites in (2, 3):
            side_name = f"lockstep-{sites}"
            with LockstepSide(side_name, broker.bootstrap_servers, folder, sites=sites) as side:
                gaps[side_name], calm[side_name] = _kills(side, KILLS[quick], rng, console)
                verdict = side.probe.verdict(0, side.produced)
                report.bar(f"{sites} sites: lost", verdict.lost, "<=", 0)
                report.bar(f"{sites} sites: duplicated", verdict.duplicated, "<=", 0)
                report.bar(f"{sites} sites: different", verdict.different, "<=", 0)
        throughput = measure_throughput(broker.bootstrap_servers, folder, quick, console)
    report.figures["settings"] = {"rate": RATE, "batch_ms": REALTIME_BATCH_MS, "kills": KILLS[quick]}
    report.figures["gaps_ms"] = gaps
    report.figures["longest_calm_gap_ms"] = calm
    report.figures["throughput"] = throughput
    report.bar("2 sites: longest gap after a kill", max(gaps["lockstep-2"]), "<=", 600, "ms")
    report.bar("3 sites: median gap after a kill", median(gaps["lockstep-3"]), "<=", 150, "ms")
    report.bar(
        "passive's median gap over 2 sites' median",
        median(gaps["passive"]) / median(gaps["lockstep-2"]),
        ">=",
        15,
    )
    report.bar(
        "micro-batch at 42,000 ev/s: frontier behind, through a kill", throughput["behind_s"], "<=", 2, "s"
    )
    report.bar("micro-batch at 42,000 ev/s: rate carried", throughput["rate"], ">=", 0.98 * 42_000, "ev/s")
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    return [gap_dots(report.figures["gaps_ms"], folder / "failover.png")]


def kill_part(side: LockstepSide, site: str, part: Part) -> None:
    """kill -9 of a site's JVM, of its Python driver, or of both."""
    if part == "both":
        side.job.kill(site)
        return
    status = side.job.status()["sites"][site]
    os.kill(int(status["jvm_pid"] if part == "jvm" else status["pid"]), signal.SIGKILL)


def all_running(side: LockstepSide) -> bool:
    """Whether every site has caught up: one that replays its last batch masks nothing yet."""
    return all(site.get("state") == RUNNING for site in side.job.status()["sites"].values())


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LockstepError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.05)


def _kills(side: LockstepSide, kills: int, rng: random.Random, console: Console) -> tuple[list[float], float]:
    """The longest gap after each kill, and the longest one of a calm stretch before the first."""
    side.feed(RATE, WARM_SECONDS)
    load = side.load(RATE, 3600).start(side.folder)
    gaps = []
    try:
        began = time.monotonic()
        time.sleep(2 * AFTER_SECONDS)
        calm = side.probe.longest_gap_ms(began + 1, began + 2 * AFTER_SECONDS)
        for number in range(kills):
            wait_until(lambda: all_running(side), RECOVERY_SECONDS, "the return of a killed site")
            time.sleep(rng.uniform(1, 6))  # a random phase
            site, part = rng.choice(side.job.sites), PARTS[number % len(PARTS)]
            killed = time.monotonic()
            kill_part(side, site, part)
            time.sleep(AFTER_SECONDS)
            side.check()
            gaps.append(round(side.probe.longest_gap_ms(killed, killed + AFTER_SECONDS), 1))
            console.print(
                f"{side.name}: kill {number + 1} of {kills} ({site}, {part}): gap {gaps[-1]:.0f} ms",
                highlight=False,
            )
        wait_until(lambda: all_running(side), RECOVERY_SECONDS, "the return of a killed site")
    finally:
        count = load.finish()
    side.probe.wait_for(side.produced, count, 60, side.check)
    side.produced += count
    return gaps, round(calm, 1)


def passive_gaps(
    bootstrap_servers: str, folder: Path, kills: int, *, name: str = "passive", say: Callable[[str], None]
) -> list[float]:
    """Plain Spark, killed and restarted at once: how long the output is silent."""
    gaps = []
    with PlainSide(name, bootstrap_servers, folder, REALTIME_BATCH_MS) as side:
        side.feed(RATE, 10)
        for number in range(kills):
            load = side.load(RATE, 3600).start(side.folder)
            try:
                time.sleep(3)
                killed = time.monotonic()
                side.kill_and_restart()
                wait_until(
                    partial(side.probe.seen_since, killed + 1), RECOVERY_SECONDS, "the output's return"
                )
                gaps.append(round(side.probe.longest_gap_ms(killed, time.monotonic()), 1))
                say(f"passive: kill {number + 1} of {kills}: gap {gaps[-1]:.0f} ms")
            finally:
                count = load.finish()
            side.probe.wait_for(side.produced, count, 120, side.check)
            side.produced += count
    return gaps
