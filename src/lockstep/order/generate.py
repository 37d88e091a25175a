"""A generator process: runs the heartbeat generators of a run's shards over Kafka.

    python -m lockstep.order.generate --bootstrap-servers HOST:PORT --order-topic T --rank 0 \
        --shard in-a:0,in-b:0 --shard in-a:1,in-b:1

Shard n of the order topic merges the n-th `--shard`'s inputs. Start several processes with ranks 0, 1, 2: none of
them is a single point of failure (`liverobin.py`). The process holds nothing that matters: kill it at any time.
"""

import argparse
import asyncio
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Log
from lockstep.log.kafka import KafkaLog
from lockstep.observe.logger import configure, get_logger
from lockstep.order.liverobin import AskEnds, Ends, Generator
from lockstep.protocol.host import Host

logger = get_logger(__name__)

Queue = tuple[str, int]


@dataclass(frozen=True)
class Shard:
    """The inputs that one shard merges, in the order of their queue numbers."""

    queues: tuple[Queue, ...]

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`topic:partition,topic:partition`."""
        queues = []
        for part in text.split(","):
            topic, _, partition = part.rpartition(":")
            if not topic or not partition.isdigit():
                raise UsageError(f"{part!r} names no input", hint="write topic:partition")
            queues.append((topic, int(partition)))
        return cls(tuple(queues))


class EndOffsets:
    """Asks where topics end, once for all shards that want to know at the same time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._asking: dict[str, asyncio.Task[Mapping[int, int]]] = {}

    async def of(self, shard: Shard) -> Ends:
        topics = {topic for topic, _ in shard.queues}
        known = dict(zip(topics, await asyncio.gather(*map(self._ask, topics)), strict=True))
        return Ends(tuple(known[topic].get(partition) for topic, partition in shard.queues))

    async def _ask(self, topic: str) -> Mapping[int, int]:
        task = self._asking.get(topic)
        if task is None or task.done():
            task = self._asking[topic] = asyncio.ensure_future(self._fresh(topic))
        return await task

    async def _fresh(self, topic: str) -> Mapping[int, int]:
        try:
            return await self._log.end_offsets(topic)
        except LockstepError as error:
            logger.debug("cannot ask where %s ends, its last cut stands: %s", topic, error)
            return {}


async def generate(
    log: Log, order_topic: str, shards: Sequence[Shard], *, name: str, rank: int, period: float
) -> None:
    """Run the generators until cancelled, or until one of them fails."""
    ends = EndOffsets(log)
    hosts = [
        _host(log, order_topic, number, shard, ends, name, rank, period)
        for number, shard in enumerate(shards)
    ]
    for host in hosts:
        await host.start()
    gc.freeze()
    try:
        await asyncio.gather(*(host.ended() for host in hosts))
    finally:
        for host in hosts:
            await host.stop()


def _host(
    log: Log, topic: str, number: int, shard: Shard, ends: EndOffsets, name: str, rank: int, period: float
) -> Host:
    tasks: set[asyncio.Task[None]] = set()

    async def answer() -> None:
        await host.command(await ends.of(shard))

    def deliver(item: Any) -> None:
        if isinstance(item, AskEnds) and not tasks:
            task = asyncio.ensure_future(answer())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    machine = Generator(name, topic, number, (0,) * len(shard.queues), rank=rank, period=period)
    host = Host(machine, node=f"{name}/{number}", log=log, deliver=deliver)
    return host


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--order-topic", required=True)
    parser.add_argument("--shard", action="append", required=True)
    parser.add_argument("--name", default="generator")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--period-ms", type=float, default=4.0)
    arguments = parser.parse_args()
    configure()

    async def run() -> None:
        async with KafkaLog(arguments.bootstrap_servers) as log:
            await generate(
                log,
                arguments.order_topic,
                [Shard.parse(text) for text in arguments.shard],
                name=arguments.name,
                rank=arguments.rank,
                period=arguments.period_ms / 1000,
            )

    uvloop.run(run())


if __name__ == "__main__":
    main()
