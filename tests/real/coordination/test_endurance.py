"""Writes that never stop, and servers that are killed one after the other, whichever it is."""

import asyncio
import random
from pathlib import Path

import pytest

from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import Ensemble
from lockstep.coordination.errors import ConnectionLoss

pytestmark = pytest.mark.real


def test_no_acknowledged_write_is_lost_and_none_happens_twice(tmp_path: Path) -> None:
    """Each node is created by one request that is never repeated, so `NodeExists` would prove a repetition by
    the servers: it is not caught."""
    chance = random.Random(9)
    acknowledged: list[str] = []
    is_over = False

    async def write(ensemble: Ensemble, number: int) -> None:
        async with Client(ensemble.connect_string, timeout=8) as client:
            count = 0
            while not is_over:
                count += 5
                paths = [f"/all/{number}-{count + i}" for i in range(5)]
                outcomes = await asyncio.gather(*map(client.create, paths), return_exceptions=True)
                for path, outcome in zip(paths, outcomes, strict=True):
                    if isinstance(outcome, str):
                        acknowledged.append(path)
                    elif not isinstance(outcome, ConnectionLoss):
                        raise outcome
                await asyncio.sleep(0.002)

    async def run(ensemble: Ensemble) -> None:
        nonlocal is_over
        loop = asyncio.get_running_loop()
        async with Client(ensemble.connect_string) as client:
            await client.create("/all")
        writers = [asyncio.create_task(write(ensemble, number)) for number in range(3)]
        for _ in range(6):
            before = len(acknowledged)
            while len(acknowledged) < before + 200:
                assert not any(writer.done() for writer in writers)
                await asyncio.sleep(0.01)
            victim = chance.choice(ensemble.running)
            ensemble.kill(victim)
            await asyncio.sleep(chance.uniform(0, 0.3))
            ensemble.start_server(victim)
            await loop.run_in_executor(None, ensemble.wait_serving, victim, 60)
        is_over = True
        await asyncio.wait_for(asyncio.gather(*writers), 60)
        for member in ensemble.members.values():
            async with Client(str(member.client)) as client:
                await client.sync()
                there = {f"/all/{name}" for name in await client.children("/all")}
                assert set(acknowledged) <= there

    with Ensemble(tmp_path, tick_ms=500, options=["--snapshot-every", "500"]) as ensemble:
        asyncio.run(run(ensemble))
