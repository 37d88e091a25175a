"""What those who make the order cost while nothing comes in, and that the first input after it does not wait."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep import process
from lockstep.log.kafka import KafkaLog
from lockstep.order.pace import CALM
from lockstep.order.records import Cut, decode

pytestmark = pytest.mark.real

BAR = 0.05
"""Of a core, for all of them together."""
SECONDS = 4.0


def test_two_idle_generators_use_less_than_a_twentieth_of_a_core_and_wake_at_once(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    asyncio.run(_run(bootstrap_servers, tmp_path))


async def _run(bootstrap_servers: str, folder: Path) -> None:
    async with KafkaLog(bootstrap_servers) as log:
        for topic in ("idle-a", "idle-b", "idle-order"):
            await log.create_topic(topic)
        generators = [_generator(bootstrap_servers, rank, folder) for rank in range(2)]
        cuts: list[tuple[float, Cut]] = []
        following = asyncio.ensure_future(_follow(log, cuts))
        try:
            await log.append("idle-a", 0, b"")
            await _until(lambda: bool(cuts))
            # Nothing is to happen now: the only thing to wait for is that time goes by.
            await asyncio.wait([following], timeout=CALM + 0.5)
            before, began = sum(map(_cpu, generators)), time.monotonic()
            await asyncio.wait([following], timeout=SECONDS)
            share = (sum(map(_cpu, generators)) - before) / (time.monotonic() - began)
            seen = len(cuts)
            appended = time.monotonic()
            await log.append("idle-b", 0, b"")
            await _until(lambda: len(cuts) > seen)
            waited = cuts[seen][0] - appended
        finally:
            following.cancel()
            for generator in generators:
                process.kill(generator)
    print(f"two idle generators: {share:.1%} of a core; first cut after {waited * 1000:.0f} ms")
    assert share < BAR
    assert waited < 0.1, "it did not wait for the next look"


async def _follow(log: KafkaLog, cuts: list[tuple[float, Cut]]) -> None:
    async with log.reader() as reader:
        await reader.subscribe("idle-order", 0, 0)
        async for record in reader:
            cut = decode(record.value or b"")
            assert isinstance(cut, Cut)
            cuts.append((time.monotonic(), cut))


def _cpu(running: "subprocess.Popen[bytes]") -> float:
    """Seconds that a process has computed so far."""
    fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _generator(bootstrap_servers: str, rank: int, folder: Path) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "lockstep.order.generate",
        f"--bootstrap-servers={bootstrap_servers}",
        "--order-topic=idle-order",
        f"--rank={rank}",
        f"--name=generator-{rank}",
        "--shard=idle-a:0,idle-b:0",
    ]
    return process.launch(command, log=folder / f"generator-{rank}.log")


async def _until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
