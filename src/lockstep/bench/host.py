"""`lockstep bench host`: what the real host itself costs, between two processes with one core each.

Node `a` sends small pings, node `b` answers each: both run a machine in a `Host`, so every message is framed,
sent over TCP, decoded strictly and handled by a machine on either side.

- Rate: a window of pings is kept under way. The figure counts pings only; as many pongs flow back at the
  same time, so the wire carries twice as many messages.
- Latency: at a tenth of the required rate, pings leave at fixed times whether or not the earlier ones came
  back, and each is measured from the time at which it was *due* until its pong is handled. So a stall counts
  against every ping that it delays, and the figure is a round trip, twice what one message takes.

The machine may be shared with others: several rounds are run, the bars look at their medians, and every
round is kept in the figures.
"""

import asyncio
import ctypes
import gc
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep import process
from lockstep.bench.report import Report
from lockstep.errors import LockstepError
from lockstep.observe.percentiles import median, percentile_of_sorted
from lockstep.protocol.client import Client
from lockstep.protocol.frames import Address
from lockstep.protocol.host import Host, serve
from lockstep.protocol.machine import ClientId, Deliver, Effects, Machine, Message, NodeId, Reply, Send

REQUIRED_RATE: Final = 50_000
REQUIRED_P99: Final = 2.0
WINDOW: Final = 512


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    number: int
    due: int
    body: bytes = b"sixteen bytes..."


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    number: int
    due: int
    body: bytes = b"sixteen bytes..."


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Measure for so many seconds."""

    what: Literal["rate", "latency"]
    seconds: float


class Flow(msgspec.Struct, frozen=True, tag="flow"):
    """Keep so many pings under way; 0 stops."""

    window: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    figures: dict[str, float]


class Echo(Machine):
    """Answers each ping and delivers each pong; sends pings one by one or as a steady flow."""

    PROTOCOL = "bench-echo"
    MESSAGES = Ping | Pong
    COMMANDS = Start | Finished | Flow | Ping
    RESULTS = dict[str, float]

    def __init__(self) -> None:
        self._asked: tuple[ClientId, int] | None = None
        self._flowing = False

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        match message:
            case Ping(number, due, body):
                return (Send(sender, Pong(number, due, body)),)
            case Pong(number, due, body) if self._flowing:
                return (Deliver(message), Send(sender, Ping(number + WINDOW, due, body)))
            case _:
                return (Deliver(message),)

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        done = Reply(client, request, {})
        match command:
            case Start():
                self._asked = (client, request)
                return (Deliver(command),)
            case Finished(figures) if self._asked is not None:
                return (Reply(*self._asked, figures), done)
            case Flow(window):
                self._flowing = window > 0
                return (*(Send("b", Ping(number, 0)) for number in range(window)), done)
            case _:
                return (Send("b", command), done)


def run(quick: bool, console: Console) -> Report:
    rounds, seconds = (3, 1.0) if quick else (7, 4.0)
    return measure(rounds, seconds, console, quick=quick)


def measure(rounds: int, seconds: float, console: Console, *, quick: bool) -> Report:
    """Measure rate and latency, and compare both with what the host must reach."""
    report = Report("host", quick)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        rates, latencies = asyncio.run(_measured(Path(name), rounds, seconds, console))
    report.figures = {
        "rounds": rounds,
        "seconds": seconds,
        "window": WINDOW,
        "latency_rate": REQUIRED_RATE // 10,
        "rate": rates,
        "latency": latencies,
        "rate_median": median([one["rate"] for one in rates]),
    }
    for key in ("p50", "p90", "p99", "max"):
        report.figures[f"{key}_median"] = median([one[key] for one in latencies])
    report.bar("pings a second", report.figures["rate_median"], ">=", REQUIRED_RATE, "/s")
    report.bar(
        f"round trip p99 at {REQUIRED_RATE // 10:,}/s", report.figures["p99_median"], "<=", REQUIRED_P99, "ms"
    )
    worst = max(one["p99"] for one in latencies)
    report.notes.append(
        f"rounds: {rounds}; slowest {min(one['rate'] for one in rates):,.0f}/s; "
        f"round trip p50 {report.figures['p50_median']:.3f} ms, worst p99 of a round {worst:.3f} ms"
    )
    waited = median([one["waited"] for one in (*rates, *latencies)])
    if waited > 0.02:
        report.notes.append(
            f"the two nodes waited {waited:.0%} of the time for a core that another process used: "
            "the figures say more about the load of this machine than about the host"
        )
    return report


async def _measured(
    folder: Path, rounds: int, seconds: float, console: Console
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    cores = sorted(os.sched_getaffinity(0))
    children = []
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console)
    try:
        children.append(_child("b", folder, cores[-1]))
        await _address(folder / "b.address", children)
        children.append(_child("a", folder, cores[0]))
        address = await _address(folder / "a.address", children)
        async with Client(Echo, [address]) as client:
            with bar:
                task = bar.add_task("measuring the host", total=2 * rounds)

                async def measure(what: Literal["rate", "latency"]) -> dict[str, float]:
                    bar.update(task, description=f"measuring {what}")
                    waited = _waited(children)
                    figures: dict[str, float] = await client.command(
                        Start(what, seconds), timeout=seconds * 5 + 20
                    )
                    bar.advance(task)
                    return {**figures, "waited": (_waited(children) - waited) / seconds}

                rates = [await measure("rate") for _ in range(rounds)]
                latencies = [await measure("latency") for _ in range(rounds)]
        return rates, latencies
    finally:
        for child in children:
            process.kill(child)


def _child(node: NodeId, folder: Path, core: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "lockstep.bench.host", node, str(folder), str(core)]
    return process.launch(command, log=folder / f"{node}.log")


async def _address(path: Path, children: "list[subprocess.Popen[bytes]]") -> Address:
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline or any(child.poll() is not None for child in children):
            log = path.with_suffix(".log")
            raise LockstepError(
                f"node {path.stem} of the bench did not start",
                hint=log.read_text()[-500:] if log.exists() else "",
            )
        await asyncio.sleep(0.01)
    host, _, port = path.read_text().rpartition(":")
    return Address(host, int(port))


def _waited(children: "list[subprocess.Popen[bytes]]") -> float:
    """Seconds for which the nodes were ready to run and other processes had their cores."""
    files = [Path(f"/proc/{child.pid}/schedstat") for child in children]
    return sum(int(file.read_text().split()[1]) for file in files if file.exists()) / 1e9


# What runs in the two child processes.


def _node(node: NodeId, folder: Path, core: int) -> None:
    os.sched_setaffinity(0, {core})
    peers = {"a": Address("127.0.0.1", 1)}  # b never dials a: the smaller id dials
    if node == "a":
        host, _, port = (folder / "b.address").read_text().rpartition(":")
        peers = {"b": Address(host, int(port))}
    driver = Driver()

    def build() -> Host:
        driver.host = Host(Echo(), node=node, peers=peers, deliver=driver.deliver)
        return driver.host

    def ready(host: Host) -> None:
        temporary = folder / f"{node}.tmp"
        temporary.write_text(str(host.address))
        temporary.rename(folder / f"{node}.address")

    serve(build, ready=ready)


class Driver:
    """The application above node `a`'s machine: makes the load and looks at the clock."""

    host: Host

    def __init__(self) -> None:
        self._on_pong: Callable[[Pong], None] = lambda _: None
        self._running: asyncio.Task[None] | None = None

    def deliver(self, item: Message) -> None:
        match item:
            case Pong():
                self._on_pong(item)
            case Start(what, seconds):
                work = self._rate(seconds) if what == "rate" else self._latency(seconds)
                self._running = asyncio.get_running_loop().create_task(self._report(work))

    async def _report(self, work: Coroutine[Any, Any, dict[str, float]]) -> None:
        while "b" not in self.host.up:
            await asyncio.sleep(0.01)
        gc.collect()
        self.host.submit(Finished(await work))

    async def _rate(self, seconds: float) -> dict[str, float]:
        count = 0

        def on_pong(_: Pong) -> None:
            nonlocal count
            count += 1

        self._on_pong = on_pong
        self.host.submit(Flow(WINDOW))
        await asyncio.sleep(0.3)  # warm up: the kernel's TCP buffers grow
        first, began = count, time.monotonic()
        await asyncio.sleep(seconds)
        rate = (count - first) / (time.monotonic() - began)
        self.host.submit(Flow(0))
        drained = -1
        while drained != count:
            drained = count
            await asyncio.sleep(0.05)
        return {"rate": rate}

    async def _latency(self, seconds: float) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        period = 10**9 * 10 // REQUIRED_RATE
        wanted = int(seconds * 10**9) // period
        took: list[int] = []
        complete: asyncio.Future[None] = loop.create_future()

        def on_pong(pong: Pong) -> None:
            took.append(time.monotonic_ns() - pong.due)
            if len(took) == wanted:
                complete.set_result(None)

        self._on_pong = on_pong
        first = time.monotonic_ns() + 20_000_000
        timer = _precise_timer(first, period)
        sent = 0

        def tick() -> None:
            nonlocal sent
            (passed,) = struct.unpack("=Q", os.read(timer, 8))
            for number in range(sent, min(sent + passed, wanted)):
                self.host.submit(Ping(number, first + number * period))
            sent += passed

        loop.add_reader(timer, tick)
        try:
            await asyncio.wait_for(complete, seconds * 3 + 5)
        finally:
            loop.remove_reader(timer)
            os.close(timer)
        took.sort()
        figures = {
            f"p{percent:g}": percentile_of_sorted(took, percent) / 1e6 for percent in (50, 90, 99, 99.9)
        }
        return {**figures, "max": took[-1] / 1e6, "count": float(len(took))}


class _TimerSpec(ctypes.Structure):
    _fields_: ClassVar = [
        ("period_seconds", ctypes.c_long),
        ("period_nanoseconds", ctypes.c_long),
        ("first_seconds", ctypes.c_long),
        ("first_nanoseconds", ctypes.c_long),
    ]


def _precise_timer(first: int, period: int) -> int:
    """A timerfd: the event loop's own timers know milliseconds only, too coarse to pace 5,000 pings/s."""
    clock_monotonic, absolute = 1, 1
    libc = ctypes.CDLL(None, use_errno=True)
    timer = int(libc.timerfd_create(clock_monotonic, os.O_NONBLOCK | os.O_CLOEXEC))
    spec = _TimerSpec(*divmod(period, 10**9), *divmod(first, 10**9))
    if timer < 0 or libc.timerfd_settime(timer, absolute, ctypes.byref(spec), None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    return timer


if __name__ == "__main__":
    _node(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
