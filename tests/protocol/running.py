"""Run an async test on the event loop that the real host uses, and wait for conditions with a deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from lockstep.protocol.frames import Address
from lockstep.protocol.host import Host


def run(test: Coroutine[Any, Any, None], *, deadline: float = 30.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(deadline):
            await test

    uvloop.run(bounded())


async def until(condition: Callable[[], Any], *, deadline: float = 10.0) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def cluster(*hosts: Host) -> AsyncIterator[dict[str, Address]]:
    """Start hosts, make them peers of each other, wait until all are connected; stop them at the end."""
    try:
        for host in hosts:
            await host.start()
        peers = {host.node: host.address for host in hosts}
        for host in hosts:
            host.set_peers(peers)
        await until(lambda: all(len(host.up) == len(hosts) - 1 for host in hosts))
        yield peers
    finally:
        for host in hosts:
            await host.stop()
