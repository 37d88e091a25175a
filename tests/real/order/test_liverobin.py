"""LiveRobin over real Kafka: generator processes are killed, replicas still agree and miss nothing."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from lockstep import process
from lockstep.log.kafka import KafkaLog
from lockstep.order.merge import Input
from lockstep.order.replica import Replica
from lockstep.protocol.host import Host

INPUTS = 4000
JUMPING_CLOCK = """
import random, time
from lockstep.order import generate
now = time.time
time.time = lambda: now() + random.uniform(-1e9, 1e9)
generate.main()
"""


def test_a_killed_generator_is_replaced_and_both_replicas_deliver_one_sequence(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    """The one that takes over has a clock that jumps by decades: nobody looks at it."""
    asyncio.run(_run(bootstrap_servers, tmp_path))


async def _run(bootstrap_servers: str, tmp_path: Path) -> None:
    queues = (("liverobin-a", 0), ("liverobin-b", 0))
    async with KafkaLog(bootstrap_servers) as log:
        for topic in ("liverobin-a", "liverobin-b", "liverobin-order"):
            await log.create_topic(topic)
        generators = [_generator(bootstrap_servers, queues, rank, tmp_path) for rank in range(2)]
        delivered: list[list[Input]] = [[], []]
        hosts = [
            Host(
                Replica("liverobin-order", 0, queues),
                node=f"site-{number}",
                folder=tmp_path / f"site-{number}",
                log=log,
                deliver=delivered[number].append,
            )
            for number in range(2)
        ]
        try:
            for host in hosts:
                await host.start()
            rng = Random(1)
            for number in range(INPUTS):
                if number == INPUTS // 2:
                    await _until(lambda: len(delivered[0]) > INPUTS // 4)
                    process.kill(generators[0])
                await log.append(*queues[rng.random() < 0.2], b"input %d" % number)
            await _until(lambda: all(len(one) == INPUTS for one in delivered))
        finally:
            for host in hosts:
                await host.stop()
            for generator in generators:
                process.stop(generator)
    assert delivered[0] == delivered[1]
    assert [one.sn for one in delivered[0]] == list(range(INPUTS))


def _generator(
    bootstrap_servers: str, queues: tuple[tuple[str, int], ...], rank: int, folder: Path
) -> "subprocess.Popen[bytes]":
    return process.launch(
        [
            sys.executable,
            *(["-c", JUMPING_CLOCK] if rank else ["-m", "lockstep.order.generate"]),
            f"--bootstrap-servers={bootstrap_servers}",
            "--order-topic=liverobin-order",
            f"--rank={rank}",
            f"--name=generator-{rank}",
            "--shard=" + ",".join(f"{topic}:{partition}" for topic, partition in queues),
        ],
        log=folder / f"generator-{rank}.log",
    )


async def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
