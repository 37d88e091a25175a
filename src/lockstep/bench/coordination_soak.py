"""`lockstep bench coordination-soak`: ten minutes of full load over a million nodes, and no election.

Three servers, a million nodes of 100 bytes; 100 setData in flight over connections to all three, on nodes all over
the tree. What must not happen is that a server is taken for dead because it was busy: with its garbage
collector, with a snapshot, with the disk. Every second each server is asked what it is and how many elections it
has seen.

A snapshot may add at most 50 ms to the 99th percentile of a write, so writes that were due while some server
wrote one are looked at apart from the others.
"""

import asyncio
import random
import tempfile
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.bench import coordination_load as load
from lockstep.bench.coordination_sides import OurSide, Side, on_loop
from lockstep.bench.report import Report
from lockstep.coordination.client import Client
from lockstep.coordination.errors import CoordinationError
from lockstep.coordination.wire.codes import Op
from lockstep.coordination.wire.jute import pack_buffer, pack_int, pack_string
from lockstep.observe.percentiles import percentile_of_sorted
from lockstep.observe.progress import Progress

SERVERS = 3
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Plan:
    seconds: int = 600
    nodes: int = 1_000_000


FULL = Plan()
QUICK = Plan(seconds=30, nodes=100_000)


@dataclass
class Course:
    """All that happened; times are time.monotonic."""

    done_at: "array[float]" = field(default_factory=lambda: array("d"))
    took_ms: "array[float]" = field(default_factory=lambda: array("f"))
    failed: int = 0
    elections: int = 0
    epochs: set[str] = field(default_factory=set)
    states: set[str] = field(default_factory=set)
    snapshots: list[tuple[float, float]] = field(default_factory=list)
    """From when to when some server was writing one."""


def run(quick: bool, console: Console) -> Report:
    return measure(QUICK if quick else FULL, console, quick=quick)


def measure(plan: Plan, console: Console, *, quick: bool) -> Report:
    report = Report("coordination-soak", quick)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        OurSide("rtzk", Path(name), servers=SERVERS) as side,
    ):
        side.wait_in_sync()
        with Progress("nodes", plan.nodes, console) as filling:
            on_loop(load.fill(side, plan.nodes, filling.update))
        side.wait_in_sync()
        with Progress("seconds of full load", plan.seconds, console) as soaking:
            course = on_loop(_soak(side, plan, soaking.advance))
        memory = max(load.memory(side).values()) / 1e9
    _report(report, plan, course, memory, console)
    return report


async def _soak(side: Side, plan: Plan, tick: Callable[[], None]) -> Course:
    course = Course()
    clients = [Client(str(member.client), timeout=5) for member in side.members.values()]
    running = True

    async def keep_writing(client: Client, rng: random.Random) -> None:
        tail = pack_buffer(load.VALUE) + pack_int(-1)
        while running:
            parent, child = divmod(rng.randrange(plan.nodes), max(1, plan.nodes // 1000))
            began = time.monotonic()
            try:
                await client.request(Op.SET_DATA, pack_string(f"/bench-memory/{parent}/{child}") + tail)
            except CoordinationError:
                course.failed += 1
                await asyncio.sleep(0.01)
                continue
            done = time.monotonic()
            course.done_at.append(done)
            course.took_ms.append((done - began) * 1000)

    try:
        for client in clients:
            await client.start()
        before = await asyncio.to_thread(_elections, side, course)
        writers = [
            asyncio.create_task(keep_writing(clients[number % SERVERS], random.Random(number)))
            for number in range(load.IN_FLIGHT)
        ]
        looking = asyncio.create_task(_look_for_snapshots(side, course))
        deadline = time.monotonic() + plan.seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(1.0, left))
            now = await asyncio.to_thread(_elections, side, course)
            course.elections = max(course.elections, now - before, len(course.epochs - {"?"}) - 1)
            tick()
        running = False
        looking.cancel()
        await asyncio.gather(*writers)
    finally:
        running = False
        for client in clients:
            await client.stop()
    return course


def _elections(side: Side, course: Course) -> int:
    """How many elections all servers have seen; a busy server that does not answer in time is asked again."""
    total = 0
    for server in side.members:
        figures = side.figures(server)
        course.epochs.add(figures.get("zk_epoch", "?"))
        course.states.add(figures.get("zk_server_state", "no answer"))
        total += int(figures.get("zk_cnt_election_time", 0))
    return total


def is_writing(folders: Iterable[Path]) -> bool:
    """Whether a snapshot is under way in one of them: it has another name until it is complete."""
    return any(True for folder in folders for _ in folder.glob("*.new"))


async def _look_for_snapshots(side: Side, course: Course) -> None:
    since = 0.0
    try:
        while True:
            writing = is_writing(side.folder / str(server) / "snapshots" for server in side.members)
            now = time.monotonic()
            if writing and not since:
                since = now - LOOK_SECONDS  # it began between two looks
            elif since and not writing:
                course.snapshots.append((since, now))
                since = 0.0
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        if since:
            course.snapshots.append((since, time.monotonic()))


def _report(report: Report, plan: Plan, course: Course, memory: float, console: Console) -> None:
    inside, outside = _apart(course)
    figures: dict[str, Any] = {
        "plan": asdict(plan),
        "writes": len(course.took_ms),
        "writes_per_second": round(len(course.took_ms) / plan.seconds),
        "failed": course.failed,
        "elections": course.elections,
        "epochs": sorted(course.epochs),
        "states": sorted(course.states),
        "snapshots": len(course.snapshots),
        "snapshot_seconds": round(sum(end - begin for begin, end in course.snapshots), 1),
        "largest_server_gb": round(memory, 3),
        "all": _summary(course.took_ms),
        "with_snapshot": _summary(inside),
        "without_snapshot": _summary(outside),
    }
    report.figures |= figures
    table = Table(
        "writes", "count", "median", "p99", "p99.9", "max", title="ms a write took", title_justify="left"
    )
    for name in ("all", "with_snapshot", "without_snapshot"):
        one = figures[name]
        table.add_row(
            name.replace("_", " "),
            f"{one['count']:,}",
            *(f"{one[figure]:.1f}" if one["count"] else "-" for figure in ("median", "p99", "p999", "max")),
        )
    console.print(table)
    text = f"{plan.seconds} s of full load over {plan.nodes:,} nodes"
    report.bar(f"elections in {text}", course.elections, "<=", 0)
    report.bar("writes that failed", course.failed, "<=", 0)
    report.bar("a second", figures["writes_per_second"], ">=", 5000, "writes")
    report.bar("largest server", memory, "<=", 2, "GB")
    if inside and outside:
        added = figures["with_snapshot"]["p99"] - figures["without_snapshot"]["p99"]
        report.bar("a snapshot adds to the p99 of a write", added, "<=", 50, "ms")
    else:
        report.notes.append("no snapshot was written in that time, or one all the time: nothing to compare")
        report.bar("writes beside a snapshot, and others", 0, ">=", 1)


def _apart(course: Course) -> tuple[list[float], list[float]]:
    """The writes that overlapped a snapshot, and the others."""
    begins = [begin for begin, _ in course.snapshots]
    inside: list[float] = []
    outside: list[float] = []
    for done, took in zip(course.done_at, course.took_ms, strict=True):
        place = bisect_right(begins, done) - 1
        overlaps = place >= 0 and done - took / 1000 <= course.snapshots[place][1]
        (inside if overlaps else outside).append(took)
    return inside, outside


def _summary(samples: Sequence[float]) -> dict[str, Any]:
    if not samples:
        return {"count": 0}
    figures = {"median": 50, "p99": 99, "p999": 99.9, "max": 100}
    ordered = sorted(samples)
    return {
        "count": len(ordered),
        **{name: round(percentile_of_sorted(ordered, percent), 2) for name, percent in figures.items()},
    }
