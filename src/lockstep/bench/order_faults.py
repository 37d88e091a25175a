"""kill -9 of whatever makes or follows an order: a generator, the leader, a site, a broker of three.

Two sites, two topics merged. After each kill the longest silence of the deduplicated output in the next 5 s is
compared with the longest one of a calm stretch in the same run: what a kill adds is the difference. Around the
last kill the 99th percentile per second is kept, with busy cores and the loopback's traffic, as in the paper's
Fig. 14.
"""

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from lockstep.bench.failover import AFTER_SECONDS, KILLS, RECOVERY_SECONDS, all_running, wait_until
from lockstep.bench.plots import fault_series
from lockstep.bench.probe import Verdict
from lockstep.bench.report import Report
from lockstep.bench.sides import LockstepSide
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median
from lockstep.replicas.settings import Order
from lockstep.spark.engine import REALTIME_BATCH_MS

RATE = 1000
WARM_UP_SECONDS = 40.0
CALM_SECONDS = 20.0
BEFORE_SECONDS = 5
SERIES_SECONDS = 15
ADDED_LIMIT_MS = {"generator": 50.0, "leader": 250.0, "site": 600.0, "broker": 600.0}
BROKER_SETTINGS = {"broker.session.timeout.ms": "400", "broker.heartbeat.interval.ms": "100"}
"""A partition of a dead broker is silent until its session ends: by default 9 s. If the broker is the controller
as well, all are silent until there is another one, 3 to 4 s: so the controller is a process apart here."""
CASES: tuple[tuple[str, Order, tuple[str, ...]], ...] = (
    ("liverobin", "liverobin", ("generator", "site")),
    ("kazoo", "kazoo", ("leader", "site")),
    ("three-brokers", "liverobin", ("broker",)),
)


def run(quick: bool, console: Console) -> Report:
    report = Report("order-faults", quick)
    rng = random.Random(6)
    gaps: dict[str, list[float]] = {}
    calm: dict[str, float] = {}
    series: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        for case, order, kinds in CASES:
            several = case == "three-brokers"
            folder = Path(name) / case
            with Broker(
                folder / "broker",
                nodes=3 if several else 1,
                settings=BROKER_SETTINGS,
                own_controller=several,
            ) as broker:
                with LockstepSide(
                    case, broker.bootstrap_servers, folder, sites=2, topics=2, order=order
                ) as side:
                    faults = Faults(side, broker, rng, console)
                    calm[case] = faults.calm()
                    for kind in kinds:
                        what = f"{case}: {kind}"
                        gaps[what], series[what] = faults.kills(kind, KILLS[quick])
                    verdict = faults.finish()
                for wrong in ("lost", "duplicated", "different"):
                    report.bar(f"{case}: {wrong}", getattr(verdict, wrong), "<=", 0)
            for kind in kinds:
                worst = max(gaps[f"{case}: {kind}"])
                added = max(0.0, worst - calm[case])
                report.bar(
                    f"{case}: longest gap that a killed {kind} adds", added, "<=", ADDED_LIMIT_MS[kind], "ms"
                )
    report.figures["settings"] = {"rate": RATE, "batch_ms": REALTIME_BATCH_MS, "kills": KILLS[quick]}
    report.figures["gaps_ms"] = gaps
    report.figures["median_gap_ms"] = {what: median(found) for what, found in gaps.items()}
    report.figures["longest_calm_gap_ms"] = calm
    report.figures["series"] = series
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    return [fault_series(report.figures["series"], folder / "order-faults.png")]


class Faults:
    """Kills parts of one side while it is fed."""

    def __init__(self, side: LockstepSide, broker: Broker, rng: random.Random, console: Console) -> None:
        self._side = side
        self._broker = broker
        self._rng = rng
        self._console = console
        side.feed(RATE, WARM_UP_SECONDS)
        self._load = side.load(RATE, 3600).start(side.folder)
        time.sleep(2)

    def calm(self) -> float:
        """The longest gap of a stretch without a kill."""
        began = time.monotonic()
        time.sleep(CALM_SECONDS)
        gap = self._side.probe.longest_gap_ms(began, time.monotonic())
        self._console.print(f"{self._side.name}: longest calm gap {gap:.0f} ms", highlight=False)
        return round(gap, 1)

    def kills(self, kind: str, count: int) -> tuple[list[float], dict[str, Any]]:
        """The longest gap after each kill, and second by second what happened around the last one."""
        gaps = []
        series: dict[str, Any] = {}
        for number in range(count):
            wait_until(lambda: all_running(self._side), RECOVERY_SECONDS, "the return of a killed site")
            time.sleep(self._rng.uniform(0, 2))  # a random phase
            with Meter() as meter:
                time.sleep(BEFORE_SECONDS)
                killed = time.monotonic()
                undo = self._kill(kind)
                time.sleep(AFTER_SECONDS)
                gaps.append(round(self._side.probe.longest_gap_ms(killed, killed + AFTER_SECONDS), 1))
                undo()
                time.sleep(SERIES_SECONDS - BEFORE_SECONDS - AFTER_SECONDS)
            self._side.check()
            series = {
                "p99_ms": self._side.probe.p99_by_second(killed - BEFORE_SECONDS, SERIES_SECONDS),
                "first_second": -BEFORE_SECONDS,
                **meter.figures(),
            }
            self._console.print(
                f"{self._side.name}: kill {number + 1} of {count} ({kind}): gap {gaps[-1]:.0f} ms",
                highlight=False,
            )
        return gaps, series

    def finish(self) -> Verdict:
        wait_until(lambda: all_running(self._side), RECOVERY_SECONDS, "the return of a killed site")
        count = self._load.finish()
        self._side.probe.wait_for(self._side.produced, count, 60, self._side.check)
        self._side.produced += count
        return self._side.probe.verdict(0, self._side.produced)

    def _kill(self, kind: str) -> Callable[[], None]:
        """kill -9; what is returned brings back what nobody else does."""
        if kind == "site":
            self._side.job.kill(self._rng.choice(self._side.job.sites))
        elif kind == "broker":
            node = self._rng.choice(self._broker.nodes)
            self._broker.kill(node)
            return lambda: self._broker.restart(node)
        else:
            name = "generator-1" if kind == "generator" else leading(self._side)
            pid = self._side.job.pid(name)
            if pid is None:
                raise LockstepError(f"{name} does not run")
            os.kill(pid, signal.SIGKILL)
        return lambda: None


def leading(side: LockstepSide) -> str:
    """The leader that says that it leads, last."""
    said = [
        (json.loads(line), folder.name)
        for folder in sorted((side.job.folder / "orders").glob("leader-*"))
        for line in (folder / "leader.log").read_text().splitlines()
        if line.startswith("{")
    ]
    found = [(one["at"], name) for one, name in said if one["is"] == "leading"]
    if not found:
        raise LockstepError("no leader says that it leads", hint=f"see {side.job.folder / 'orders'}")
    return max(found)[1]


class Meter:
    """The machine's busy cores and the traffic of its loopback, each second: nothing else runs in a bench."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._samples: list[tuple[float, float, int]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Meter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def figures(self) -> dict[str, list[float]]:
        pairs = list(zip(self._samples, self._samples[1:], strict=False))
        return {
            "cores": [round((b[1] - a[1]) / (b[0] - a[0]), 2) for a, b in pairs],
            "loopback_mb_per_s": [round((b[2] - a[2]) / (b[0] - a[0]) / 1e6, 2) for a, b in pairs],
        }

    def _watch(self) -> None:
        while True:
            busy = psutil.cpu_times()
            traffic = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
            self._samples.append((time.monotonic(), busy.user + busy.nice + busy.system, traffic))
            if self._stop.wait(1.0):
                return
