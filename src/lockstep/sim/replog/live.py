"""The replicated log for real: three processes, a broker, clients, a kill -9, and what the outside saw.

1. The broker is up and holds a topic with one partition a node.
2. Nodes n1, n2, n3 run as processes of their own, each with a durable folder.
3. Clients ask until they are answered; each operation has a client name of its own, so that a command that
   is repeated at another node is the same command for all of them.
4. After a third of the commands the leader is killed with -9; after another third it is started again.
5. When all commands are answered and all nodes have delivered the same number of entries, the deliveries
   are read from the topic, and `LiveRun` holds the history that the checkers judge.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from subprocess import Popen

import msgspec

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.log.kafka import KafkaLog
from lockstep.ports import free_ports
from lockstep.protocol.client import Client
from lockstep.protocol.frames import Address
from lockstep.sim.history import Delivered, Operation, Sequence
from lockstep.sim.replog.messages import Answer, Command, Committed, CompareAndSet, Get, NotLeader, Put
from lockstep.sim.replog.node import LogNode

NODES = ("n1", "n2", "n3")
TOPIC = "demo-deliveries"
KEYS = tuple(f"key-{number}" for number in range(12))
ATTEMPT_SECONDS = 0.2
CATCH_UP_SECONDS = 30.0


class LiveRun(msgspec.Struct):
    """What came out."""

    operations: list[Operation]
    sequences: list[Sequence]
    killed: str = ""
    longest_gap: float = 0.0
    """Longest time between two answers, in seconds: what clients noticed of the kill."""
    seconds: float = 0.0


class Cluster:
    """Three nodes as processes."""

    def __init__(self, folder: Path, bootstrap_servers: str) -> None:
        self._folder = folder
        self._servers = bootstrap_servers
        self.addresses = {
            node: Address("127.0.0.1", port) for node, port in zip(NODES, free_ports(len(NODES)), strict=True)
        }
        self._processes: dict[str, Popen[bytes]] = {}
        self.incarnations = dict.fromkeys(NODES, 0)

    def start(self, node: str) -> None:
        self.incarnations[node] += 1
        peers = ",".join(f"{name}={address.port}" for name, address in self.addresses.items())
        command = [sys.executable, "-m", "lockstep.sim.replog.process", "--node", node, "--peers", peers]
        command += ["--folder", str(self._folder / node), "--bootstrap-servers", self._servers]
        command += ["--topic", TOPIC, "--incarnation", str(self.incarnations[node])]
        self._processes[node] = process.launch(command, log=self._folder / f"{node}.log")

    def kill(self, node: str) -> None:
        process.kill(self._processes[node])

    def check(self, *, besides: str = "") -> None:
        """Raise if a node that should run has ended."""
        for node, running in self._processes.items():
            if node != besides and running.poll() is not None:
                raise LockstepError(
                    f"node {node} ended with code {running.returncode}", hint=f"see {self._folder / node}.log"
                )

    def stop(self) -> None:
        for running in self._processes.values():
            if running.poll() is None:
                running.terminate()
        for running in self._processes.values():
            process.stop(running, grace=5.0)


class Clients:
    """`count` clients that share `commands` commands and whatever they know about who leads."""

    def __init__(self, cluster: Cluster, commands: int, count: int, answered: Callable[[int], None]) -> None:
        self._cluster = cluster
        self._commands = commands
        self._count = count
        self._answered = answered
        self._rng = Random()
        self._begun = 0
        self.done = 0
        self.leader = NODES[0]
        self.operations: list[Operation] = []
        self.answers: list[float] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1, self._count + 1):
                group.create_task(self._client(f"c{number}"))

    async def _client(self, name: str) -> None:
        while self._begun < self._commands:
            self._begun += 1
            operation = Operation(f"{name}-{self._begun}", 1, self._command(self._begun), _microseconds())
            self.operations.append(operation)
            operation.result = await self._ask(operation)
            operation.returned = _microseconds()
            self.answers.append(time.monotonic())
            self.done += 1
            self._answered(self.done)

    async def _ask(self, operation: Operation) -> Answer:
        target = self.leader
        while True:
            try:
                # A connection for each attempt: the name stays, and so does the request's number, 1.
                async with Client(
                    LogNode, [self._cluster.addresses[target]], client=operation.client
                ) as client:
                    result = await client.command(operation.command, timeout=ATTEMPT_SECONDS)
            except LockstepError:
                result = NotLeader("")
            if isinstance(result, Answer):
                self.leader = target
                return result
            await asyncio.sleep(0.02)
            target = result.leader or self._rng.choice(NODES)

    def _command(self, number: int) -> Command:
        key, value = self._rng.choice(KEYS), f"v{number}"
        chance = self._rng.random()
        if chance < 0.4:
            return Get(key)
        return Put(key, value) if chance < 0.9 else CompareAndSet(key, f"v{max(1, number - 20)}", value)


async def run(
    folder: Path, bootstrap_servers: str, *, commands: int, clients: int, say: Callable[[str], None],
    answered: Callable[[int], None],
) -> LiveRun:  # fmt: skip
    """Run it all; `say` gets the story, `answered` the count of answers."""
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(KafkaLog(bootstrap_servers))
        await log.create_topic(TOPIC, partitions=len(NODES))
        cluster = Cluster(folder, bootstrap_servers)
        stack.callback(cluster.stop)
        for node in NODES:
            cluster.start(node)
        say(f"nodes {', '.join(NODES)} run as processes of their own")
        killed = ""
        asking = Clients(cluster, commands, clients, answered)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            work = group.create_task(asking.run())
            while asking.done < commands // 3 and not work.done():
                cluster.check()
                await asyncio.sleep(0.005)
            if not work.done():
                killed, before = asking.leader, asking.done
                cluster.kill(killed)
                say(f"kill -9 of {killed}, the leader, after {before} answers")
                while asking.done < 2 * commands // 3 and not work.done():
                    cluster.check(besides=killed)
                    await asyncio.sleep(0.005)
                cluster.start(killed)
                say(f"{killed} starts again from its disk; the others gave {asking.done - before} answers")
            while not work.done():
                cluster.check()
                await asyncio.sleep(0.02)
        seconds = time.monotonic() - began
        say("all commands are answered; waiting until every node has delivered everything")
        sequences = await _caught_up(log, cluster)
        gap = max((b - a for a, b in zip(asking.answers, asking.answers[1:], strict=False)), default=0.0)
        return LiveRun(asking.operations, sequences, killed, gap, seconds)


async def _caught_up(log: KafkaLog, cluster: Cluster) -> list[Sequence]:
    """Every incarnation's deliveries, once the newest ones have all got equally far (or time is up)."""
    found: dict[tuple[str, int], Sequence] = {
        (node, number): Sequence(node, number, [])
        for node in NODES
        for number in range(1, cluster.incarnations[node] + 1)
    }
    offsets = dict.fromkeys(range(len(NODES)), 0)
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < deadline:
        cluster.check()
        ends = await log.end_offsets(TOPIC)
        for partition, node in enumerate(NODES):
            while offsets[partition] < ends[partition]:
                for record in await log.read(TOPIC, partition, offsets[partition]):
                    offsets[partition] = record.offset + 1
                    item = msgspec.json.decode(record.value or b"", type=Committed)
                    sequence = found[node, int(record.key or b"0")]
                    sequence.deliveries.append(Delivered(record.timestamp * 1000, item))
        lengths = {len(found[node, cluster.incarnations[node]].deliveries) for node in NODES}
        if len(lengths) == 1 and lengths != {0}:
            break
        await asyncio.sleep(0.05)
    return list(found.values())


def _microseconds() -> int:
    return time.monotonic_ns() // 1000
