"""Throughput, memory and a follower's crash: what an ensemble carries when nothing is elected.

The same asyncio client on both sides, in this one process: at the rates of this bench it takes a core of its
own, so that on a small machine all figures are also about the client.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lockstep.bench.coordination_sides import Side
from lockstep.coordination.client import Client
from lockstep.coordination.errors import CoordinationError
from lockstep.coordination.wire.codes import Op
from lockstep.coordination.wire.jute import pack_buffer, pack_int, pack_string
from lockstep.observe.percentiles import percentile

VALUE = b"v" * 100
IN_FLIGHT = 100
STEADY_RATE = 2000
NODES_PER_MULTI = 200
WINDOW_SECONDS = 5.0
DOWN_SECONDS = 1.0
MOST_WARM_UP = 60


@dataclass(frozen=True)
class Rate:
    """What was answered in a second, after the rate had stopped rising."""

    per_second: float
    warm_up_seconds: int
    is_steady: bool
    """False if it was still rising when the patience ended: then the figure is too low."""
    each_second: tuple[int, ...]
    """The whole course, warm-up included."""


async def writes(side: Side, seconds: int) -> Rate:
    """setData a second; the requests in flight are shared by one connection to each server."""
    clients = [Client(str(member.client), timeout=5) for member in side.members.values()]
    return await _rate(clients, Op.SET_DATA, pack_buffer(VALUE) + pack_int(-1), seconds)


async def reads(side: Side, server: int, seconds: int) -> Rate:
    """getData a second from one server, over one connection."""
    return await _rate([Client(str(side.members[server].client), timeout=5)], Op.GET_DATA, b"\0", seconds)


def is_steady(each_second: Sequence[float]) -> bool:
    """The best of the last five seconds is hardly better than the best before: a JVM compiles as it runs, and
    has done most of it then."""
    before, recent = each_second[:-5], each_second[-5:]
    return len(before) >= 5 and max(recent) <= 1.1 * max(before)


async def _rate(clients: Sequence[Client], op: Op, tail: bytes, seconds: int) -> Rate:
    """What counts is a reply without an error."""
    done = 0
    is_running = True

    async def keep_asking(client: Client, path: str) -> None:
        nonlocal done
        body = pack_string(path) + tail
        request = client.request
        while is_running:
            await request(op, body)
            done += 1

    course: list[int] = []

    async def a_second() -> float:
        before, began = done, time.monotonic()
        await asyncio.sleep(1)
        rate = (done - before) / (time.monotonic() - began)
        course.append(round(rate))
        return rate

    try:
        for client in clients:
            await client.start()
        paths = [f"/bench-load/{number}" for number in range(IN_FLIGHT)]
        await _prepare(clients[0], paths)
        for client in clients:
            await client.sync()
        asking = asyncio.gather(
            *(keep_asking(clients[number % len(clients)], path) for number, path in enumerate(paths))
        )
        while not is_steady(course) and len(course) < MOST_WARM_UP and not asking.done():
            await a_second()
        warm_up, steady = len(course), is_steady(course)
        measured = [await a_second() for _ in range(seconds)]
        is_running = False
        await asking
        return Rate(sum(measured) / seconds, warm_up, steady, tuple(course))
    finally:
        is_running = False
        for client in clients:
            await client.stop()


async def _prepare(client: Client, paths: Sequence[str]) -> None:
    await client.ensure("/bench-load")
    for path in paths:
        await client.ensure(path)
        await client.set(path, VALUE)


async def fill(side: Side, nodes: int, progress: Callable[[int], None]) -> None:
    """Create so many nodes of 100 bytes below 1,000 parents, in transactions of 200."""
    async with Client(side.connect_string, timeout=5) as client:
        await client.ensure("/bench-memory")
        waiting: deque[asyncio.Task[Any]] = deque()
        per_parent = max(1, nodes // 1000)
        transaction = client.transaction()
        for number in range(nodes):
            parent, child = divmod(number, per_parent)
            if child == 0:
                await asyncio.gather(*waiting)
                waiting.clear()
                await client.create(f"/bench-memory/{parent}")
            transaction.create(f"/bench-memory/{parent}/{child}", VALUE)
            if (
                child % NODES_PER_MULTI == NODES_PER_MULTI - 1
                or child == per_parent - 1
                or number == nodes - 1
            ):
                waiting.append(asyncio.ensure_future(transaction.commit()))
                transaction = client.transaction()
                progress(number + 1)
                if len(waiting) > 10:
                    await waiting.popleft()
        await asyncio.gather(*waiting)


def memory(side: Side) -> dict[int, float]:
    """Resident bytes of each server."""
    return {server: float(psutil.Process(side.pid(server)).memory_info().rss) for server in side.running}


@dataclass(frozen=True)
class Return:
    """A follower's crash and return under a steady load; milliseconds from the time a write was due."""

    before_p99: float
    around_crash_p99: float
    around_return_p99: float
    rate: float
    away_seconds: float
    waited_before: float
    """Share of the time that the survivors and the client, taken together, waited for a core that others used."""
    waited_around: float

    @property
    def ratio(self) -> float:
        return max(self.around_crash_p99, self.around_return_p99) / self.before_p99


async def follower_returns(side: Side) -> Return:
    """Writes at a fixed rate over connections to the survivors; one follower is killed and started again."""
    loop = asyncio.get_running_loop()
    leader = await asyncio.to_thread(side.wait_in_sync)
    victim = next(server for server in side.running if server != leader)
    clients = [Client(str(m.client), timeout=5) for server, m in side.members.items() if server != victim]
    paths = [f"/bench-load/{number}" for number in range(IN_FLIGHT)]
    took: list[tuple[float, float]] = []
    failed: list[CoordinationError] = []
    body = [pack_string(path) + pack_buffer(VALUE) + pack_int(-1) for path in paths]

    async def write(number: int, due: float) -> None:
        try:
            await clients[number % len(clients)].request(Op.SET_DATA, body[number % IN_FLIGHT])
            took.append((due, time.monotonic() - due))
        except CoordinationError as error:
            failed.append(error)

    running = True

    async def steadily() -> None:
        began, number = time.monotonic(), 0
        tasks: set[asyncio.Task[None]] = set()
        while running:
            while (due := began + number / STEADY_RATE) <= time.monotonic():
                task = loop.create_task(write(number, due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)

    try:
        for client in clients:
            await client.start()
        await _prepare(clients[0], paths)
        load = loop.create_task(steadily())
        await asyncio.sleep(2.0)
        pids = [os.getpid(), *(side.pid(server) for server in side.running if server != victim)]
        waits = [(time.monotonic(), waited(pids))]
        await asyncio.sleep(WINDOW_SECONDS)
        waits.append((time.monotonic(), waited(pids)))
        killed = side.strike(victim)
        await asyncio.to_thread(side.bury, victim)
        await asyncio.sleep(DOWN_SECONDS)
        await asyncio.to_thread(side.start_server, victim)  # a fork on the loop would count as latency
        await asyncio.to_thread(side.wait_serving, victim)
        returned = time.monotonic()
        await asyncio.sleep(WINDOW_SECONDS)
        waits.append((time.monotonic(), waited(pids)))
        running = False
        await load
    finally:
        running = False
        for client in clients:
            await client.stop()
    if failed:
        raise failed[0]

    def share(first: tuple[float, float], last: tuple[float, float]) -> float:
        return (last[1] - first[1]) / (last[0] - first[0])

    def p99(start: float) -> float:
        within = [one for due, one in took if start <= due < start + WINDOW_SECONDS]
        return percentile(within, 99) * 1000

    counted = [due for due, _ in took if killed - WINDOW_SECONDS <= due < killed]
    return Return(
        before_p99=p99(killed - WINDOW_SECONDS),
        around_crash_p99=p99(killed - WINDOW_SECONDS / 2),
        around_return_p99=p99(returned - WINDOW_SECONDS / 2),
        rate=len(counted) / WINDOW_SECONDS,
        away_seconds=returned - killed,
        waited_before=share(waits[0], waits[1]),
        waited_around=share(waits[1], waits[2]),
    )


def waited(pids: Sequence[int]) -> float:
    """Seconds that the main threads of these processes, on average, were ready to run and had no core."""
    files = [Path(f"/proc/{pid}/task/{pid}/schedstat") for pid in pids]
    return sum(int(file.read_text().split()[1]) for file in files) / 1e9 / len(files)
