"""One node of the replicated log as a real process: what `lockstep demo` starts three of.

Every delivery is appended to the node's own partition of a topic, with the number of the incarnation as its
key, so that the verdict can be computed from the log by the same checkers that judge simulated runs. A node
that comes back delivers from the log's start again, as a new incarnation.
"""

import argparse
import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from lockstep.log.interface import Entry
from lockstep.log.kafka import KafkaLog
from lockstep.observe import logger
from lockstep.protocol.frames import Address
from lockstep.protocol.host import Host, serve
from lockstep.sim.replog.node import LogNode

LARGEST_BATCH = 500
MOST_WAITING = 100_000


class Deliveries:
    """Takes deliveries from the host and appends them in order, as many at a time as have come."""

    def __init__(self, log: KafkaLog, topic: str, partition: int, incarnation: int) -> None:
        self._log = log
        self._topic, self._partition = topic, partition
        self._key = str(incarnation).encode()
        self._waiting: deque[Entry] = deque()
        self._more = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._write())

    def take(self, item: Any) -> None:
        if self._task.done():  # a node whose deliveries are lost must not go on
            raise RuntimeError(f"deliveries cannot be written: {self._task.exception()}")
        if len(self._waiting) >= MOST_WAITING:
            raise RuntimeError(f"{MOST_WAITING} deliveries wait for the log: it is too slow or gone")
        self._waiting.append(Entry(msgspec.json.encode(item), key=self._key))
        self._more.set()

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(LARGEST_BATCH, len(self._waiting)))]
                await self._log.append_batch(self._topic, self._partition, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--peers", required=True, help="n1=port,n2=port,...")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    given = parser.parse_args()
    logger.configure()
    peers = {
        name: Address("127.0.0.1", int(port))
        for name, _, port in (peer.partition("=") for peer in given.peers.split(","))
    }
    nodes = sorted(peers)

    def build() -> Host:
        log = KafkaLog(given.bootstrap_servers)
        deliveries = Deliveries(log, given.topic, nodes.index(given.node), given.incarnation)
        return Host(
            LogNode(given.node, nodes, heartbeat=0.03, patience=0.15, batch=64),
            node=given.node,
            peers=peers,
            listen=peers[given.node],
            folder=given.folder,
            deliver=deliveries.take,
        )

    serve(build)


if __name__ == "__main__":
    main()
