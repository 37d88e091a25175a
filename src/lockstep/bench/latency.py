"""Latency in calm weather: plain Spark at short and long batches beside Lockstep with 1, 2 and 3 sites.

Every round runs every side once, in an order that rotates, with topics of its own and the same load. Latency is
from `produce` to the arrival at the deduplicated consumer. The tail of plain Spark is the stall at each batch
boundary, so plain Spark is measured at 5 s and at 60 s batches, and every figure says which.
"""

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from lockstep.bench.deduplication import measure as measure_deduplication
from lockstep.bench.plots import latency_cdf
from lockstep.bench.probe import summary
from lockstep.bench.report import Report
from lockstep.bench.sides import LockstepSide, PlainSide, Side
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median, quantiles
from lockstep.spark.engine import REALTIME_BATCH_MS

RATES = (1000, 2000)
SIDES = ("plain-5s", "plain-60s", "lockstep-1", "lockstep-2", "lockstep-3")
WARM_UP_SECONDS = {True: 50.0, False: 60.0}
"""Until the JVMs have compiled what they run: after 10 s the first window still shows the compiler everywhere."""
WINDOW_SECONDS = {True: 65.0, False: 130.0}
"""Longer than the longest batch, so that every side meets at least one boundary at each rate."""
ROUNDS = {True: 1, False: 3}


def run(quick: bool, console: Console) -> Report:
    report = Report("latency", quick)
    report.figures["settings"] = {
        "rates": RATES,
        "keys": 100,
        "record_bytes": 200,
        "lockstep_batch_ms": REALTIME_BATCH_MS,
        "window_seconds": WINDOW_SECONDS[quick],
        "rounds": ROUNDS[quick],
    }
    samples: dict[tuple[str, int], list[list[float]]] = {}
    uses: dict[str, list[dict[str, float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        folder = Path(name)
        for round_number in range(ROUNDS[quick]):
            for side_name in SIDES[round_number % len(SIDES) :] + SIDES[: round_number % len(SIDES)]:
                with _side(side_name, round_number, broker.bootstrap_servers, folder) as side:
                    console.print(f"round {round_number + 1}: {side_name} runs", highlight=False)
                    side.feed(max(RATES), WARM_UP_SECONDS[quick])
                    before = side.use()
                    for rate in RATES:
                        began, ended = side.feed(rate, WINDOW_SECONDS[quick])
                        latencies = side.probe.latencies_ms(began, ended)
                        samples.setdefault((side_name, rate), []).append(latencies)
                        console.print(f"  {rate} ev/s: {latency_line(summary(latencies))}", highlight=False)
                    after = side.use()
                    uses.setdefault(side_name, []).append(
                        {
                            "cpu_seconds_per_site": round(after.cpu_seconds - before.cpu_seconds, 1),
                            "memory_mb_per_site": round(after.memory_mb),
                        }
                    )
                    verdict = side.probe.verdict(0, side.produced)
                    if side_name.startswith("lockstep"):
                        report.bar(f"{side.name}: lost, duplicated or different", verdict.wrong, "<=", 0)
        deduplication = measure_deduplication(broker.bootstrap_servers, quick, console)
    figures = _figures(samples)
    report.figures["latency_ms"] = figures
    report.figures["use"] = uses
    report.figures["samples_ms"] = {
        f"{side}@{rate}": quantiles(rounds) for (side, rate), rounds in samples.items()
    }
    report.figures["deduplication"] = deduplication
    _set_bars(report, figures, deduplication)
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    return [latency_cdf(report.figures["samples_ms"], folder / "latency.png")]


def latency_line(figures: dict[str, float]) -> str:
    """Percentiles in one line."""
    return "  ".join(f"{mark} {value:.1f}" for mark, value in figures.items()) + " ms"


def _side(name: str, round_number: int, bootstrap_servers: str, folder: Path) -> Side:
    unique = f"{name}-r{round_number + 1}"
    kind, _, detail = name.partition("-")
    if kind == "plain":
        return PlainSide(unique, bootstrap_servers, folder, int(detail.removesuffix("s")) * 1000)
    return LockstepSide(unique, bootstrap_servers, folder, sites=int(detail))


def _figures(samples: dict[tuple[str, int], list[list[float]]]) -> dict[str, dict[str, float]]:
    """Per side and rate: the median over the rounds of each percentile."""
    figures: dict[str, dict[str, float]] = {}
    for (side, rate), rounds in samples.items():
        summaries = [summary(one) for one in rounds]
        figures[f"{side}@{rate}"] = {mark: median([one[mark] for one in summaries]) for mark in summaries[0]}
    return figures


def _set_bars(report: Report, figures: dict[str, dict[str, float]], deduplication: dict[str, Any]) -> None:
    for rate in RATES:
        ours = figures[f"lockstep-2@{rate}"]
        short, long = figures[f"plain-5s@{rate}"], figures[f"plain-60s@{rate}"]
        report.bar(
            f"{rate} ev/s: p50, 2 sites over plain", ours["p50"] / min(short["p50"], long["p50"]), "<=", 1.5
        )
        report.bar(f"{rate} ev/s: p99, 2 sites over plain at 5 s", ours["p99"] / short["p99"], "<=", 0.5)
        report.bar(
            f"{rate} ev/s: p99.9, 2 sites over plain at 60 s", ours["p99.9"] / long["p99.9"], "<=", 0.5
        )
        report.bar(f"{rate} ev/s: max, 2 sites over plain at 60 s", ours["max"] / long["max"], "<=", 0.5)
    report.bar("deduplication: records per second", deduplication["records_per_second"], ">=", 50_000)
    report.bar("deduplication: p50 added", deduplication["added_p50_ms"], "<=", 1.0, "ms")
    report.bar("egress: p50 added", deduplication["egress_added_p50_ms"], "<=", 15.0, "ms")
