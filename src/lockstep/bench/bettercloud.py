"""BetterCloud with a kill (section VII-C, Fig. 16): p99 of each second around it, in every configuration.

Each side is fed by the example's generator, warmed up, measured, and loses something to kill -9 in the middle of
the window. Latency is full: from the moment at which an event was due to the arrival of its alert at a reader of
the output. A second is one of arrivals: one without alerts has no p99, and the next one shows how long that was.
Sides of Lockstep are compared, alert by alert, with an oracle that replays the agreed order.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.bench.bettercloud_plots import p99_around_the_kill
from lockstep.bench.bettercloud_sides import Engine, LockstepSide, PlainSide, Side, example_module
from lockstep.bench.report import Report
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median, percentile
from lockstep.spark.engine import MICROBATCH_MS, REALTIME_BATCH_MS

RATES = (1000, 5000)
ENGINES: tuple[Engine, ...] = ("realtime", "microbatch")
CONFIGURATIONS = ("no replication", "passive", "no ordering", "kazoo site", "kazoo leader", "liverobin")
WARM_UP_SECONDS = {True: 10.0, False: 30.0}
WINDOW_SECONDS = {True: 20.0, False: 120.0}
ROUNDS = {True: 1, False: 5}
SLO_MS = 2000.0
KILL_BAR_MS = 700.0
DRAIN_SECONDS = 120.0
BATCH_MS: dict[Engine, int] = {"realtime": REALTIME_BATCH_MS, "microbatch": MICROBATCH_MS}
PASSIVE_BATCH_MS: dict[Engine, int] = {"realtime": 5000, "microbatch": MICROBATCH_MS}
"""Passive replication goes back to the last batch's end: short ones, as it would have them."""

PAPER: dict[tuple[int, str], tuple[float, float, str]] = {
    (1000, "passive"): (188, 309, "no output +6..+46 s, then 47,930"),
    (1000, "liverobin"): (219, 326, "308"),
    (1000, "kazoo leader"): (142, 333, "895"),
    (1000, "kazoo site"): (175, 313, "271"),
    (5000, "passive"): (178, 297, "no output +7..+79 s, then 84,179"),
    (5000, "liverobin"): (189, 474, "325"),
    (5000, "kazoo leader"): (159, 376, "602"),
    (5000, "kazoo site"): (164, 409, "247"),
}
"""Behind the paper's Fig. 16: p99 per second before the fault (median, largest), and in the ten seconds after."""


@dataclass(frozen=True)
class Measured:
    """One side: p99 by second, where second 0 begins with the kill."""

    p99_ms: dict[int, float]
    alerts: int
    killed: str
    difference: str
    """What differs from the oracle, or nothing; of plain sides what two sites did not agree on."""
    differing: int

    @property
    def before(self) -> list[float]:
        return [p99 for second, p99 in self.p99_ms.items() if second < 0]

    @property
    def after(self) -> list[float]:
        return [p99 for second, p99 in self.p99_ms.items() if second >= 0]

    def silent_seconds(self, until: int) -> int:
        return sum(second not in self.p99_ms for second in range(until))

    def seconds_beyond(self, objective_ms: float) -> int:
        return sum(p99 > objective_ms for p99 in self.p99_ms.values())


def run(quick: bool, console: Console) -> Report:
    report = Report("bettercloud", quick)
    report.figures["settings"] = {
        "rates": RATES,
        "batch_ms": BATCH_MS,
        "passive_batch_ms": PASSIVE_BATCH_MS,
        "warm_up_seconds": WARM_UP_SECONDS[quick],
        "window_seconds": WINDOW_SECONDS[quick],
        "rounds": ROUNDS[quick],
        "slo_ms": SLO_MS,
    }
    found: dict[tuple[Engine, int, str], list[Measured]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        for round_number in range(ROUNDS[quick]):
            for engine in ENGINES:
                for rate in RATES:
                    for configuration in _rotated(CONFIGURATIONS, round_number):
                        unique = f"{configuration.replace(' ', '-')}-{engine}-{rate}-r{round_number + 1}"
                        side = _side(configuration, unique, broker.bootstrap_servers, Path(name), engine)
                        one = _measure(side, rate, quick, seed=round_number + 1, console=console)
                        found.setdefault((engine, rate, configuration), []).append(one)
    for (engine, rate, configuration), rounds in found.items():
        report.figures[f"{configuration}, {engine}, {rate} ev/s"] = [_figures(one) for one in rounds]
        _bars(report, engine, rate, configuration, rounds)
    _show(console, found, WINDOW_SECONDS[quick])
    report.notes.append("Full latency. The paper's figures: 37 servers, one machine a task; here all on one.")
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    return [
        p99_around_the_kill(
            {
                name.partition(",")[0]: rounds[0]["p99_ms"]
                for name, rounds in report.figures.items()
                if name.endswith(f", {engine}, {rate} ev/s")
            },
            SLO_MS,
            folder / f"bettercloud-{engine}-{rate}.png",
        )
        for engine in ENGINES
        for rate in RATES
        if any(name.endswith(f", {engine}, {rate} ev/s") for name in report.figures)
    ]


def by_second(arrivals: Sequence[tuple[float, float]], origin_ms: float, since_ms: float) -> dict[int, float]:
    """p99 of the latencies that arrived in each second; (arrival, latency) pairs in milliseconds."""
    seconds: dict[int, list[float]] = {}
    for arrived, latency in arrivals:
        if arrived >= since_ms:
            seconds.setdefault(int((arrived - origin_ms) // 1000), []).append(latency)
    return {second: round(percentile(some, 99), 1) for second, some in sorted(seconds.items())}


def _side(configuration: str, name: str, bootstrap_servers: str, folder: Path, engine: Engine) -> Side:
    batch_ms = BATCH_MS[engine]
    match configuration:
        case "no replication":
            return PlainSide(
                name, bootstrap_servers, folder, engine, sites=1, restart=False, batch_ms=batch_ms
            )
        case "passive":
            return PlainSide(
                name,
                bootstrap_servers,
                folder,
                engine,
                sites=1,
                restart=True,
                batch_ms=PASSIVE_BATCH_MS[engine],
            )
        case "no ordering":
            return PlainSide(
                name, bootstrap_servers, folder, engine, sites=2, restart=True, batch_ms=batch_ms
            )
        case "liverobin":
            return LockstepSide(
                name, bootstrap_servers, folder, engine, order="auto", victim="site", batch_ms=batch_ms
            )
        case "kazoo site" | "kazoo leader":
            victim: Any = configuration.removeprefix("kazoo ")
            return LockstepSide(
                name, bootstrap_servers, folder, engine, order="kazoo", victim=victim, batch_ms=batch_ms
            )
    raise LockstepError(f"no configuration is called {configuration!r}")


def _measure(side: Side, rate: int, quick: bool, *, seed: int, console: Console) -> Measured:
    warm_up, window = WARM_UP_SECONDS[quick], WINDOW_SECONDS[quick]
    with side:
        console.print(f"{side.name}: starts", highlight=False)
        _first_alerts(side)
        began = time.time()
        side.start_feed(rate, warm_up + window, seed)
        _wait(side, began + warm_up + window / 2)
        killed_at = time.time()
        killed = side.kill()
        sent = side.finish_feed()
        _drain(side, (began + warm_up + window) * 1000)
        rows = list(side.arrivals.rows)
        difference, differing = _verdict(side, rows)
    alerts = [(arrived, json.loads(value)) for arrived, value in rows]
    latencies = [(arrived, arrived - alert["ingestedAt"]) for arrived, alert in _first_of_each(alerts)]
    measured = Measured(
        by_second(latencies, killed_at * 1000, (began + warm_up) * 1000),
        len(latencies),
        killed,
        difference,
        differing,
    )
    worst = max(measured.after, default=0.0)
    console.print(
        f"{side.name}: {sent} records, {measured.alerts} alerts; killed {killed}; p99 per second: "
        f"median {median(measured.before):.0f} before, worst {worst:.0f} ms after; "
        + (difference or ("as the oracle says" if isinstance(side, LockstepSide) else "none differs")),
        highlight=False,
    )
    return measured


def _first_alerts(side: Side) -> None:
    """Rules for everybody and events until alerts come: then the side runs."""
    deadline = time.monotonic() + 180
    seed = 1000
    while not side.arrivals.wait(20, 5, side.check):
        if time.monotonic() > deadline:
            raise LockstepError(f"{side.name} raised no alerts within 180 s", hint=f"see {side.folder}")
        side.start_feed(200, 4, seed)
        side.finish_feed()
        seed += 1


def _wait(side: Side, until: float) -> None:
    while time.time() < until:
        side.check()
        time.sleep(0.05)


def _drain(side: Side, ended_ms: float) -> None:
    """Until an alert on one of the last events has come, if there will be any, and none for two seconds."""
    deadline = time.monotonic() + DRAIN_SECONDS
    seen, since = -1, time.monotonic()
    answered = not side.recovers
    while time.monotonic() < deadline and (not answered or time.monotonic() - since < 2):
        rows = side.arrivals.rows
        if len(rows) != seen:
            seen, since = len(rows), time.monotonic()
            answered = answered or json.loads(rows[-1][1])["ingestedAt"] > ended_ms - 1000
        side.check()
        time.sleep(0.05)


def _verdict(side: Side, rows: Sequence[tuple[float, bytes]]) -> tuple[str, int]:
    oracle, agreed = example_module("oracle"), example_module("agreed")
    found = [oracle.alert_of(value) for _, value in rows]
    if isinstance(side, LockstepSide):
        order = agreed.of_run(side.job.folder, side.bootstrap_servers, side.merged, side.controls)
        difference = oracle.compare(oracle.replay(order), found, in_order=side.engine == "realtime")
        return ("", 0) if difference is None else (str(difference), difference.count)
    first: dict[tuple[int, int, int], Any] = {}
    differing = sum(first.setdefault(alert.place, alert) != alert for alert in found)
    return (
        (f"{differing} alerts are not the same each time they were raised", differing)
        if differing
        else ("", 0)
    )


def _first_of_each(alerts: Sequence[tuple[float, dict[str, Any]]]) -> list[tuple[float, dict[str, Any]]]:
    """What a reader keeps who knows which alert is which: plain sides repeat themselves after a kill."""
    seen: set[tuple[int, int, int]] = set()
    kept = []
    for arrived, alert in alerts:
        place = (alert["shard"], alert["sn"], alert["rank"])
        if place not in seen:
            seen.add(place)
            kept.append((arrived, alert))
    return kept


def _bars(report: Report, engine: Engine, rate: int, configuration: str, rounds: Sequence[Measured]) -> None:
    if not configuration.startswith(("kazoo", "liverobin")):
        return
    name = f"{configuration}, {engine}, {rate} ev/s"
    report.bar(f"{name}: differs from the oracle", sum(one.differing for one in rounds), "<=", 0)
    worst = max(max(one.p99_ms.values(), default=float("inf")) for one in rounds)
    most = KILL_BAR_MS if engine == "realtime" and rate == 1000 else SLO_MS
    report.bar(f"{name}: worst p99 of a second", worst, "<=", most, "ms")


def _figures(one: Measured) -> dict[str, Any]:
    return {
        "p99_ms": {str(second): p99 for second, p99 in one.p99_ms.items()},
        "before_median_ms": median(one.before) if one.before else None,
        "before_max_ms": max(one.before, default=None),
        "first_10_s_max_ms": max((p99 for s, p99 in one.p99_ms.items() if 0 <= s < 10), default=None),
        "alerts": one.alerts,
        "killed": one.killed,
        "seconds_beyond_slo": one.seconds_beyond(SLO_MS),
        "differing": one.differing,
        "difference": one.difference,
    }


def _show(console: Console, found: dict[tuple[Engine, int, str], list[Measured]], window: float) -> None:
    table = Table(title="p99 of each second, ms (in brackets the paper's)", title_justify="left")
    for column in (
        "engine",
        "ev/s",
        "configuration",
        "before: median",
        "largest",
        "10 s after the kill",
        "silent",
        "beyond 2 s",
    ):
        table.add_column(column, justify="left" if column in ("engine", "configuration") else "right")
    for (engine, rate, configuration), rounds in found.items():
        paper = PAPER.get((rate, configuration))
        before = [p99 for one in rounds for p99 in one.before]
        after = [p99 for one in rounds for second, p99 in one.p99_ms.items() if 0 <= second < 10]
        told = [f"{median(before):.0f}", f"{max(before):.0f}"] if before else ["none", "none"]
        told.append(f"{max(after):.0f}" if after else "none")
        if paper is not None:
            told = [f"{mine} ({theirs})" for mine, theirs in zip(told, map(str, paper), strict=True)]
        silent = max(one.silent_seconds(int(window / 2)) for one in rounds)
        beyond = max(one.seconds_beyond(SLO_MS) for one in rounds)
        table.add_row(engine, f"{rate:,}", configuration, *told, f"{silent} s", f"{beyond} s")
    console.print(table)


def _rotated(some: Sequence[str], by: int) -> list[str]:
    return [*some[by % len(some) :], *some[: by % len(some)]]
