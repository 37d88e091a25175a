"""KaZoo over real Kafka and our coordination service: leaders are killed and frozen, the order topic is trimmed,
and the order flows on."""

import asyncio
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from lockstep import process
from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import Ensemble
from lockstep.log.kafka import KafkaLog
from lockstep.order.acceptance import Acceptance
from lockstep.order.candidacy import Candidacy
from lockstep.order.inputs import Shard
from lockstep.order.merge import Input
from lockstep.order.records import Claim, Order, decode, encode
from lockstep.order.replica import Replica
from lockstep.order.trim import SiteProgress
from lockstep.order.trimming import remember, trim
from lockstep.protocol.host import Host

pytestmark = pytest.mark.real

TAKE_OVER_SECONDS = 0.25
"""A killed leader, beyond the longest gap of the same run without a kill: the median of three."""
FREEZE_SECONDS = 1.0
"""Well below the two seconds of a session: who waits for its end is late."""


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble")) as running:
        yield running


class Leaders:
    """Leader processes of one order topic, and who of them says that it leads."""

    def __init__(
        self, bootstrap_servers: str, ensemble: Ensemble, topic: str, shard: Shard, folder: Path
    ) -> None:
        self._command = [
            sys.executable,
            "-m",
            "lockstep.order.lead",
            f"--bootstrap-servers={bootstrap_servers}",
            f"--coordination={ensemble.connect_string}",
            f"--order-topic={topic}",
            f"--shard={shard}",
        ]
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        self.running[name] = process.launch([*self._command, f"--name={name}"], log=log)

    def said(self, name: str) -> list[dict[str, object]]:
        lines = (self._folder / f"{name}.log").read_bytes().splitlines()
        return [msgspec.json.decode(line) for line in lines if line.startswith(b"{")]

    def stop(self) -> None:
        for running in self.running.values():
            process.kill(running)


class Orders:
    """What counts in the order topic, each with the moment at which it was read."""

    def __init__(self, log: KafkaLog, topic: str, queues: int) -> None:
        self._log = log
        self._topic = topic
        self._accepted = Acceptance(queues)
        self.orders: list[tuple[float, int]] = []
        self.leader = ""

    async def follow(self) -> None:
        async with self._log.reader() as reader:
            await reader.subscribe(self._topic, 0, 0)
            async for record in reader:
                match self._accepted.accept(decode(record.value or b"")):
                    case Claim(by=by):
                        self.leader = by
                    case Order(epoch=epoch):
                        self.orders.append((time.monotonic(), epoch))

    @property
    def epoch(self) -> int:
        return self.orders[-1][1] if self.orders else 0

    async def more(self, count: int) -> None:
        enough = len(self.orders) + count
        await _until(lambda: len(self.orders) > enough)

    def longest_gap(self, after: float) -> float:
        """Between two orders, from the last one before `after` until now."""
        moments = [moment for moment, _ in self.orders]
        first = max((number for number, moment in enumerate(moments) if moment <= after), default=0)
        return max(later - earlier for earlier, later in itertools.pairwise(moments[first:]))


def test_leaders_that_are_killed_or_frozen_are_replaced_and_the_replicas_agree(
    bootstrap_servers: str, ensemble: Ensemble, tmp_path: Path
) -> None:
    asyncio.run(_run(bootstrap_servers, ensemble, tmp_path))


async def _run(bootstrap_servers: str, ensemble: Ensemble, tmp_path: Path) -> None:
    async with KafkaLog(bootstrap_servers) as log:
        for topic in ("kazoo-a", "kazoo-b", "kazoo-order"):
            await log.create_topic(topic)
        await log.append("kazoo-a", 0, b"before the run")
        shard = Shard.parse("kazoo-a:0@1,kazoo-b:0")
        leaders = Leaders(bootstrap_servers, ensemble, "kazoo-order", shard, tmp_path)
        delivered: list[list[Input]] = [[], []]
        replicas = [Replica("kazoo-order", 0, shard.queues, starts=shard.starts) for _ in range(2)]
        hosts = [
            Host(
                replicas[number],
                node=f"site-{number}",
                folder=tmp_path / f"site-{number}",
                log=log,
                deliver=delivered[number].append,
            )
            for number in range(2)
        ]
        orders = Orders(log, "kazoo-order", 2)
        following = asyncio.ensure_future(orders.follow())
        feeding: asyncio.Task[None] | None = None
        try:
            for number in range(5):
                leaders.start(f"leader-{number}")
            for host in hosts:
                await host.start()
            done = asyncio.Event()
            feeding = asyncio.ensure_future(_feed(log, shard, done))
            await orders.more(100)

            beyond = []
            for _ in range(3):
                began = time.monotonic()
                await orders.more(100)
                usual = orders.longest_gap(began)
                killed = await _strike(orders, lambda: process.kill(leaders.running.pop(orders.leader)))
                gap = orders.longest_gap(killed)
                print(f"leader killed: no order for {1000 * gap:.0f} ms, {1000 * usual:.0f} without a kill")
                assert gap < FREEZE_SECONDS, "missed by its connection, not by its session's timeout"
                beyond.append(gap - usual)
            assert statistics.median(beyond) < TAKE_OVER_SECONDS

            frozen = leaders.running[orders.leader]
            stopped = await _strike(orders, lambda: os.kill(frozen.pid, signal.SIGSTOP))
            print(
                f"leader frozen: longest gap between two orders {1000 * orders.longest_gap(stopped):.0f} ms"
            )
            assert orders.longest_gap(stopped) < FREEZE_SECONDS, "deposed for its silence in the order topic"
            os.kill(frozen.pid, signal.SIGCONT)

            before = orders.epoch
            ensemble.kill(ensemble.wait_leader())
            await orders.more(100)
            assert orders.epoch == before, "the death of a coordination server deposes nobody"

            async with Client(ensemble.connect_string) as client:
                await trim(
                    log,
                    "kazoo-order",
                    0,
                    [
                        SiteProgress(host.node, replica.position)
                        for host, replica in zip(hosts, replicas, strict=True)
                    ],
                    remember=lambda position: remember(client, "kazoo-order", 0, position),
                )
            assert (await log.first_offsets("kazoo-order"))[0] > 100
            old = list(leaders.running)
            leaders.start("late")
            for name in old:
                process.kill(leaders.running.pop(name))
            await _until(lambda: orders.leader == "late")
            await orders.more(50)

            done.set()
            await feeding
            total = sum([(await log.end_offsets(topic))[0] for topic, _ in shard.queues]) - sum(shard.starts)
            await _until(lambda: all(len(one) == total for one in delivered))
        finally:
            following.cancel()
            if feeding is not None:
                feeding.cancel()
            for host in hosts:
                await host.stop()
            leaders.stop()
    assert delivered[0] == delivered[1]
    assert [one.sn for one in delivered[0]] == list(range(total))
    assert min(one.offset for one in delivered[0] if one.queue == 0) == 1


async def _feed(log: KafkaLog, shard: Shard, done: asyncio.Event) -> None:
    rng = Random(1)
    while not done.is_set():
        await log.append(*shard.queues[rng.random() < 0.2], b"input")
        await asyncio.sleep(0.002)


async def _strike(orders: Orders, blow: Callable[[], object]) -> float:
    """Hit the leader and wait until another one has ordered for a while; when it was hit."""
    before = orders.epoch
    moment = time.monotonic()
    await asyncio.get_running_loop().run_in_executor(None, blow)
    await _until(lambda: sum(epoch > before for _, epoch in orders.orders) > 50)
    return moment


async def _until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_leader_says_so_when_the_topic_has_seen_higher_epochs_than_the_service_gives(
    bootstrap_servers: str, ensemble: Ensemble, tmp_path: Path
) -> None:
    """The coordination service was set up anew: without a word, no order would ever count again."""
    shard = Shard.parse("kazoo-old:0")
    leaders = Leaders(bootstrap_servers, ensemble, "kazoo-old-order", shard, tmp_path)

    async def prepare() -> None:
        async with KafkaLog(bootstrap_servers) as log:
            for topic in ("kazoo-old", "kazoo-old-order"):
                await log.create_topic(topic)
            await log.append("kazoo-old-order", 0, encode(Claim(1 << 60, "of another age")))

    asyncio.run(prepare())
    try:
        leaders.start("leader-1")
        assert leaders.running["leader-1"].wait(30) == 1
    finally:
        leaders.stop()
    assert "begin a run with another order topic" in (tmp_path / "leader-1.log").read_text()


def test_a_leader_that_was_not_heard_yet_is_warned_before_it_is_deposed(ensemble: Ensemble) -> None:
    async def run() -> None:
        told: list[tuple[str, int]] = []

        def candidacy(name: str) -> Candidacy:
            return Candidacy(
                ensemble.connect_string,
                "/orders/warned",
                name,
                elected=lambda epoch: told.append((name, epoch)),
                deposed=lambda: told.append((name, 0)),
            )

        first, second = candidacy("first"), candidacy("second")
        standing = [asyncio.ensure_future(first.run())]
        try:
            await _until(lambda: len(told) == 1)
            standing.append(asyncio.ensure_future(second.run()))
            epoch = told[0][1]
            async with Client(ensemble.connect_string) as client:
                async with asyncio.timeout(10):
                    while len(await client.children("/orders/warned")) < 2:
                        await asyncio.sleep(0.01)
                await second.depose(epoch - 1)
                await client.sync()
                assert await first.stands(), "its claim may be on the way"
                await first.depose(epoch - 1)
                assert await first.stands(), "nobody deposes itself"
                await second.depose(epoch - 1)
            await _until(lambda: ("first", 0) in told and max(told)[0] == "second")
            assert max(told)[1] > epoch
            async with asyncio.timeout(10):
                while not await first.stands():
                    await asyncio.sleep(0.01)
        finally:
            for task in standing:
                task.cancel()
            await asyncio.gather(*standing, return_exceptions=True)

    asyncio.run(run())
