"""`lockstep bench coordination`: recovery from leader kills, throughput, memory, beside ZooKeeper 3.9.5.

1. Kills (`coordination_kills`): 3, 5 and 7 servers; `vanilla`, `rtzk-l`, `rtzk` and ZooKeeper take turns, so
   that a busy minute of this machine meets all of them. Only the side under test runs: on a few cores the
   heartbeats of idle ensembles would be part of the figure.
2. Each technique's share as the paper takes it (section 6): FCE from the election, QCN from the recovery
   of `vanilla` and `rtzk-l`, DEP from the whole of `rtzk-l` and `rtzk`; again with an injected slow disk.
3. The timing model's estimate (section 4) with this machine's parameters. It is an estimate and no bound.
4. Throughput, memory, a follower's crash and return (`coordination_load`).

Everything is printed whatever it is.
"""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lockstep.bench import coordination_load as load
from lockstep.bench.coordination_kills import PHASES, Kill, block, summary
from lockstep.bench.coordination_model import calibrated
from lockstep.bench.coordination_plots import recovery_cdf
from lockstep.bench.coordination_sides import SIDES, TICK_MS, OurSide, Side, SideName, on_loop
from lockstep.bench.peers.zookeeper import VERSION, ZooKeeper
from lockstep.bench.report import Report
from lockstep.coordination import timing
from lockstep.coordination.zab.settings import Settings, Variant
from lockstep.coordination.zab.settings import variant as variant_settings
from lockstep.observe.percentiles import median

MILLION = 1_000_000
SLOW_DISK_SECONDS = 0.03
"""A forced write of a 7,200 rpm disk: two or three turns."""
OURS: tuple[Variant, ...] = ("vanilla", "rtzk-l", "rtzk")


@dataclass(frozen=True)
class Plan:
    kills: int
    """Of each side at each size."""
    block: int
    sizes: tuple[int, ...] = (3, 5, 7)
    slow_kills: int = 30
    seconds: int = 20
    nodes: int = MILLION
    returns: int = 5


FULL = Plan(kills=100, block=10)
QUICK = Plan(kills=10, block=5, slow_kills=5, seconds=5, nodes=MILLION // 10, returns=3)


def run(quick: bool, console: Console) -> Report:
    return measure(QUICK if quick else FULL, console, quick=quick)


def measure(plan: Plan, console: Console, *, quick: bool) -> Report:
    report = Report("coordination", quick)
    report.figures["settings"] = {**asdict(plan), "tick_ms": TICK_MS, "zookeeper": VERSION}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        folder = Path(name)
        kills = _kill_leaders(plan, folder, console)
        slow = _kill_slowly(plan, folder, console)
        _report_kills(report, plan, kills, slow, console)
        _report_model(report, plan, kills, folder)
        _report_throughput(report, plan, folder, console)
        _report_memory(report, plan, folder, console)
        _report_returns(report, plan, folder, console)
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    return [
        recovery_cdf(sides, f"{size} servers", folder / f"coordination-{size}.png")
        for size, sides in report.figures["kills"].items()
    ]


# Kills.


def _kill_leaders(plan: Plan, folder: Path, console: Console) -> dict[int, dict[SideName, list[Kill]]]:
    rng = random.Random(5)
    found: dict[int, dict[SideName, list[Kill]]] = {}
    with _progress(console, "leader kills", plan.kills * len(plan.sizes) * len(SIDES)) as done:
        for size in plan.sizes:
            sides = {name: _side(name, folder / f"{name}-{size}", size) for name in SIDES}
            found[size] = {name: [] for name in SIDES}
            for begun in range(0, plan.kills, plan.block):
                count = min(plan.block, plan.kills - begun)
                for name in rng.sample(SIDES, len(SIDES)):
                    found[size][name] += block(sides[name], count, rng, done)
    return found


def _kill_slowly(plan: Plan, folder: Path, console: Console) -> dict[Variant, list[Kill]]:
    """The variants on a slow disk, 3 servers."""
    rng = random.Random(6)
    found: dict[Variant, list[Kill]] = {}
    with _progress(console, "kills on a slow disk", plan.slow_kills * len(OURS)) as done:
        for name in OURS:
            side = OurSide(
                f"{name}-slow", folder / f"{name}-slow", servers=3, variant=name, slow_disk=SLOW_DISK_SECONDS
            )
            found[name] = block(side, plan.slow_kills, rng, done)
    return found


def _side(name: SideName, folder: Path, servers: int) -> Side:
    if name == "zookeeper":
        return ZooKeeper(folder, servers=servers)
    return OurSide(name, folder, servers=servers, variant=name)


def _report_kills(
    report: Report,
    plan: Plan,
    kills: dict[int, dict[SideName, list[Kill]]],
    slow: dict[Variant, list[Kill]],
    console: Console,
) -> None:
    figures: dict[str, Any] = {
        str(size): {name: summary(one) for name, one in sides.items()} for size, sides in kills.items()
    }
    slow_figures: dict[str, Any] = {name: summary(one) for name, one in slow.items()}
    report.figures["kills"] = figures
    report.figures["slow_disk"] = {"seconds": SLOW_DISK_SECONDS, "kills": slow_figures}
    for size, sides in figures.items():
        ours, real = (sides[name]["phases"]["election"] for name in ("vanilla", "zookeeper"))
        if real["count"] and ours["median"] > 1.5 * real["median"]:
            report.notes.append(
                f"{size} servers: vanilla's election took {ours['median']:.0f} ms and ZooKeeper's own "
                f"{real['median']:.0f} ms: FCE's share over ZooKeeper is smaller than over our vanilla"
            )
    report.figures["shares"] = {
        **{size: shares(sides) for size, sides in figures.items()},
        "3 slow": shares(slow_figures),
    }
    rows = [(f"{size}", name, one) for size, sides in figures.items() for name, one in sides.items()]
    rows += [("3 slow", name, one) for name, one in slow_figures.items()]
    console.print(_kill_table(rows))
    console.print(_share_table(report.figures["shares"]))
    first = figures[str(plan.sizes[0])]
    rtzk = first["rtzk"]
    servers = f"{plan.sizes[0]} servers"
    report.bar(f"rtzk, {servers}: median from kill to write", rtzk["median"], "<=", 40, "ms")
    report.bar(f"rtzk, {servers}: 95th percentile", rtzk["p95"], "<=", 120, "ms")
    for size, sides in figures.items():
        report.bar(f"rtzk, {size} servers: maximum", sides["rtzk"]["max"], "<=", 178, "ms")
    for size, sides in figures.items():
        ratio = sides["zookeeper"]["median"] / sides["rtzk"]["median"]
        report.bar(f"ZooKeeper's median over rtzk's, {size} servers", ratio, ">=", 8)


def shares(sides: dict[str, Any]) -> dict[str, float]:
    """What each technique takes off the median, in milliseconds."""

    def phase(name: str, which: str) -> float:
        return float(sides[name]["phases"][which].get("median", float("nan")))

    return {
        "fce": round(phase("vanilla", "election") - phase("rtzk-l", "election"), 2),
        "qcn": round(phase("vanilla", "recovery") - phase("rtzk-l", "recovery"), 2),
        "dep": round(sides["rtzk-l"]["median"] - sides["rtzk"]["median"], 2),
    }


def _kill_table(rows: Sequence[tuple[str, str, dict[str, Any]]]) -> Table:
    title = "ms from kill -9 of the leader until a write is acknowledged; phases: medians"
    table = Table(title=title, title_justify="left", pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("size", no_wrap=True)
    table.add_column("side", no_wrap=True)
    for name in ("median", "p95", "max", "detect", "elect", "recover", "answer"):
        table.add_column(name, justify="right", no_wrap=True)
    for size, name, one in rows:
        phases = [f"{one['phases'][p]['median']:.1f}" if one["phases"][p]["count"] else "-" for p in PHASES]
        table.add_row(size, name, *(f"{one[figure]:.1f}" for figure in ("median", "p95", "max")), *phases)
    return table


def _share_table(found: dict[str, dict[str, float]]) -> Table:
    title = "what each technique takes off the median, ms"
    table = Table(
        "servers", "FCE (election)", "QCN (recovery)", "DEP (whole)", title=title, title_justify="left"
    )
    for size, one in found.items():
        table.add_row(size, *(f"{one[name]:.1f}" for name in ("fce", "qcn", "dep")))
    return table


def _report_model(
    report: Report, plan: Plan, kills: dict[int, dict[SideName, list[Kill]]], folder: Path
) -> None:
    notices = [
        notice for sides in kills.values() for name in OURS for kill in sides[name] for notice in kill.notices
    ]
    if not notices:
        return
    parameters = calibrated(folder, notices)
    estimates: dict[str, Any] = {}
    for size in plan.sizes:
        for name in OURS:
            own = timing.with_waits(parameters, variant_settings(name, Settings()))
            estimate = timing.estimate(name, own, size - 1)
            estimates[f"{name}-{size}"] = {
                "election_ms": round(estimate.election * 1000, 2),
                "recovery_ms": round(estimate.recovery * 1000, 2),
                "total_ms": round(estimate.total * 1000, 2),
            }
            longest = max(kill.took for kill in kills[size][name])
            report.notes.append(f"{timing.explain(name, own, size - 1)}; longest measured {longest:.1f} ms")
    report.figures["model"] = {
        "parameters_ms": {
            name: round(value * 1000, 4)
            for name in parameters.__struct_fields__
            if isinstance(value := getattr(parameters, name), float)
        },
        "estimates": estimates,
    }


# Load.


def _report_throughput(report: Report, plan: Plan, folder: Path, console: Console) -> None:
    found: dict[str, dict[str, load.Rate]] = {}
    with _progress(console, "throughput", 4) as done:
        for name, side in _pair(folder / "throughput"):
            with side:
                leader = side.wait_in_sync()
                writes = on_loop(load.writes(side, plan.seconds))
                done()
                follower = next(server for server in side.running if server != leader)
                reads = on_loop(load.reads(side, follower, plan.seconds))
                done()
            found[name] = {"writes": writes, "reads": reads}
    report.figures["throughput"] = {
        name: {what: asdict(rate) for what, rate in rates.items()} for name, rates in found.items()
    }
    title = f"3 servers, 100-byte values, {load.IN_FLIGHT} in flight, per second"
    table = Table("side", "writes", "reads", "warm-up (s)", title=title, title_justify="left")
    for name, rates in found.items():
        warm_up = ", ".join(
            f"{rate.warm_up_seconds}{'' if rate.is_steady else ' (still rising)'}" for rate in rates.values()
        )
        table.add_row(name, *(f"{rate.per_second:,.0f}" for rate in rates.values()), warm_up)
    console.print(table)
    ours, theirs = found["rtzk"], found["zookeeper"]
    report.bar("writes a second (3 servers, 100 in flight)", ours["writes"].per_second, ">=", 5_000, "/s")
    report.bar("reads a second from one server", ours["reads"].per_second, ">=", 20_000, "/s")
    report.notes.append(
        f"ZooKeeper with the same client: {theirs['writes'].per_second:,.0f} writes/s, "
        f"{theirs['reads'].per_second:,.0f} reads/s"
    )


def _report_memory(report: Report, plan: Plan, folder: Path, console: Console) -> None:
    side = Side("rtzk", folder / "memory", servers=3)
    with side, _progress(console, "znodes", plan.nodes) as done:
        side.wait_in_sync()
        empty = max(load.memory(side).values())
        on_loop(load.fill(side, plan.nodes, partial(done, to=True)))
        side.wait_in_sync(600)
        full = load.memory(side)
    largest = max(full.values())
    million = empty + (largest - empty) * MILLION / plan.nodes
    extrapolated = plan.nodes != MILLION
    report.figures["memory"] = {
        "nodes": plan.nodes,
        "extrapolated": extrapolated,
        "empty_mb": round(empty / 1e6, 1),
        "servers_mb": {str(server): round(size / 1e6, 1) for server, size in full.items()},
        "million_gb": round(million / 1e9, 3),
    }
    label = f" (extrapolated from {plan.nodes:,})" if extrapolated else ""
    report.bar(f"a million 100-byte znodes, largest server{label}", million / 1e9, "<=", 2, "GB")


def _report_returns(report: Report, plan: Plan, folder: Path, console: Console) -> None:
    found: dict[str, list[load.Return]] = {}
    with _progress(console, "a follower's crash and return", 2 * plan.returns) as done:
        for name, side in _pair(folder / "returns"):
            with side:
                side.wait_in_sync()
                on_loop(load.writes(side, 1))  # warm, as before the rates
                found[name] = []
                for _ in range(plan.returns):
                    found[name].append(on_loop(load.follower_returns(side)))
                    done()
    report.figures["follower_return"] = {
        name: [{**asdict(one), "ratio": one.ratio} for one in rounds] for name, rounds in found.items()
    }
    rounds = found["rtzk"]
    over = sum(one.ratio > 2 for one in rounds)
    report.notes.append(
        f"follower's crash and return: {over} of {len(rounds)} rounds above 2, the worst "
        f"{max(one.ratio for one in rounds):.2f}; the bar looks at the median round"
    )
    report.bar(
        f"follower's crash and return at {load.STEADY_RATE:,} writes/s: write p99 over p99 before "
        f"(median of {len(rounds)})",
        median([one.ratio for one in rounds]),
        "<=",
        2,
    )
    for name, several in found.items():
        listed = "; ".join(
            f"{one.before_p99:.1f} before, {one.around_crash_p99:.1f} crash, {one.around_return_p99:.1f} return"
            f" at {one.rate:,.0f}/s (no core {one.waited_before:.0%}, then {one.waited_around:.0%} of the time)"
            for one in several
        )
        report.notes.append(f"{name}, write p99 in 5 s windows, ms: {listed}")


def _pair(folder: Path) -> tuple[tuple[str, Side], ...]:
    return (
        ("zookeeper", ZooKeeper(folder / "zookeeper", servers=3)),
        ("rtzk", Side("rtzk", folder / "rtzk", servers=3)),
    )


@contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar; the callable moves it by one, or to a count with `to=True`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)

        def done(count: int = 1, *, to: bool = False) -> None:
            if to:
                progress.update(task, completed=count)
            else:
                progress.advance(task, count)

        yield done
