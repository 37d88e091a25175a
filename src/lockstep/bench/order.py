"""What an order costs: two topics merged under LiveRobin and KaZoo, beside plain Spark that reads both unordered.

The load alternates between the topics; the pipeline counts per key. Replicas that read in different orders would
number their inputs differently, and the deduplicated output would lack some: so "lost" tells of the order too.

Plain Spark runs twice: as it comes, which the bars compare with, and tuned, with the shuffle's waiting time that
our sites have (2 ms, where Spark has 50). Against the tuned one an order shows what it costs: a look at the
inputs, an append and a fetch. All sides have batches of 5 s: at longer ones a 99th percentile sees no boundary.
Besides: how fast the source alone merges a backlog, and what generators and leaders cost when nothing comes in.
"""

import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console

from lockstep.bench.latency import RATES, latency_line
from lockstep.bench.merge_speed import measure as measure_merge
from lockstep.bench.plots import latency_cdf
from lockstep.bench.probe import summary
from lockstep.bench.report import Report
from lockstep.bench.sides import LockstepSide, PlainSide, Side
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median, quantiles
from lockstep.replicas.settings import Order

RATE = max(RATES)
TOPICS = 2
BATCH_MS = 5_000
SIDES = ("plain", "tuned", "liverobin-1", "kazoo-1", "liverobin-2", "kazoo-2")
WARM_UP_SECONDS = {True: 40.0, False: 60.0}
WINDOW_SECONDS = {True: 40.0, False: 120.0}
ROUNDS = {True: 1, False: 5}
IDLE_SECONDS = {True: 20.0, False: 60.0}
OVER_PLAIN = {"p50": 1.5, "p99": 0.5}
P50_LIMIT_MS = {"liverobin": 9.0, "kazoo": 10.0}


def run(quick: bool, console: Console) -> Report:
    report = Report("order", quick)
    samples: dict[str, list[list[float]]] = {}
    idle: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Broker(Path(name) / "broker") as broker,
    ):
        for round_number in range(ROUNDS[quick]):
            turn = round_number % len(SIDES)
            for side_name in SIDES[turn:] + SIDES[:turn]:
                unique = f"{side_name}-r{round_number + 1}"
                with _side(side_name, unique, broker.bootstrap_servers, Path(name)) as side:
                    console.print(f"round {round_number + 1}: {side_name} runs", highlight=False)
                    side.feed(RATE, WARM_UP_SECONDS[quick])
                    began, ended = side.feed(RATE, WINDOW_SECONDS[quick])
                    latencies = side.probe.latencies_ms(began, ended)
                    samples.setdefault(side_name, []).append(latencies)
                    console.print(f"  {RATE} ev/s: {latency_line(summary(latencies))}", highlight=False)
                    if isinstance(side, LockstepSide):
                        verdict = side.probe.verdict(0, side.produced)
                        report.bar(f"{unique}: lost, duplicated or different", verdict.wrong, "<=", 0)
                        order = side_name.partition("-")[0]
                        if order not in idle:
                            idle[order] = _idle_cost(side, IDLE_SECONDS[quick])
        merge = measure_merge(broker, quick, console)
    figures = {
        side: {mark: median([summary(one)[mark] for one in rounds]) for mark in summary(rounds[0])}
        for side, rounds in samples.items()
    }
    report.figures["settings"] = {
        "rate": RATE,
        "batch_ms": BATCH_MS,
        "topics": TOPICS,
        "window_seconds": WINDOW_SECONDS[quick],
        "rounds": ROUNDS[quick],
    }
    report.figures["latency_ms"] = figures
    report.figures["samples_ms"] = {side: quantiles(rounds) for side, rounds in samples.items()}
    report.figures["idle_cores"] = idle
    report.figures["merge"] = merge
    for order, limit in P50_LIMIT_MS.items():
        report.bar(f"{order}, 1 site: p50", figures[f"{order}-1"]["p50"], "<=", limit, "ms")
        for mark, limit in OVER_PLAIN.items():
            ratio = {side: figures[f"{order}-2"][mark] / figures[side][mark] for side in ("plain", "tuned")}
            report.bar(f"{order}, 2 sites: {mark} over plain Spark as it comes", ratio["plain"], "<=", limit)
            report.figures.setdefault("over_tuned", {})[f"{order} {mark}"] = round(ratio["tuned"], 2)
            console.print(
                f"{order}, 2 sites: {mark} over plain Spark with our shuffle setting: {ratio['tuned']:.2f}"
            )
        report.bar(f"{order}: cores of its processes when idle", idle[order], "<=", 0.05)
    report.bar("the source alone, one shard on one core", merge["one_shard"], ">=", 150_000, "records/s")
    report.bar("two shards on two cores over one on one", merge["two_shards"] / merge["one_shard"], ">=", 1.7)
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    return [latency_cdf(report.figures["samples_ms"], folder / "order.png")]


def _side(name: str, unique: str, bootstrap_servers: str, folder: Path) -> Side:
    if name in ("plain", "tuned"):
        return PlainSide(
            unique, bootstrap_servers, folder, BATCH_MS, topics=TOPICS, as_it_comes=name == "plain"
        )
    order, _, sites = name.partition("-")
    chosen: Order = "kazoo" if order == "kazoo" else "liverobin"
    return LockstepSide(
        unique,
        bootstrap_servers,
        folder,
        sites=int(sites),
        topics=TOPICS,
        order=chosen,
        batch_ms=BATCH_MS,
    )


def _idle_cost(side: LockstepSide, seconds: float) -> float:
    """Cores that generators and leaders use while nothing comes in. The service that elects is not counted."""
    pids = [
        pid
        for name in side.job.status()["others"]
        if name.startswith(("generator", "leader"))
        if (pid := side.job.pid(name)) is not None
    ]
    time.sleep(3)  # until they have noticed that nothing comes
    before, began = _cpu(pids), time.monotonic()
    time.sleep(seconds)
    return round((_cpu(pids) - before) / (time.monotonic() - began), 4)


def _cpu(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
