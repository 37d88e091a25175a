"""A generator process: runs the heartbeat generators of a run's shards over Kafka.

    python -m lockstep.order.generate --bootstrap-servers HOST:PORT --order-topic T --rank 0 \
        --shard in-a:0@17,in-b:0@4 --shard in-a:1@23,in-b:1@0

Shard n of the order topic merges the n-th `--shard`'s inputs; `@` names the offset at which the run began (0 if it
is left out), and a `+` behind it says that the shard takes in what is added to that topic (`growth.py`). Start
several processes with ranks 0, 1, 2: none of them is a single point of failure (`liverobin.py`). The process holds
nothing that matters: kill it at any time. What it has to say, it says as lines of JSON (`report.py`).
"""

import asyncio
import gc
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lockstep.log.interface import Log
from lockstep.order import command
from lockstep.order.growth import Growth
from lockstep.order.inputs import EndOffsets, Shard, ShardHost
from lockstep.order.liverobin import Generator
from lockstep.order.pace import IDLE
from lockstep.order.report import report_void

RECALLED = 1000
"""Order records that a new generator reads of what is there: enough to know the latest cut."""


async def generate(
    log: Log,
    order_topic: str,
    shards: Sequence[Shard],
    *,
    name: str,
    rank: int,
    period: float,
    idle: float = IDLE,
    trimmed: Path | None = None,
) -> None:
    """Run the generators until cancelled, or until one of them fails."""
    ends = EndOffsets(log, shards, fresh=period / 2)
    first = await log.first_offsets(order_topic)
    last = await log.end_offsets(order_topic)
    machines = [
        Generator(
            name,
            order_topic,
            number,
            shard.starts,
            rank=rank,
            period=period,
            idle=idle,
            order_offset=max(first.get(number, 0), last.get(number, 0) - RECALLED),
            growing=shard.growing,
        )
        for number, shard in enumerate(shards)
    ]
    growth = Growth(
        name,
        log,
        order_topic,
        shards,
        tell=lambda number, grown: hosts[number].tell(grown),
        trimmed=trimmed,
    )
    hosts = [
        ShardHost(
            machine,
            node=f"{name}/{number}",
            log=log,
            shard=shards[number],
            ends=ends,
            deliver=partial(growth.delivered, number),
        )
        for number, machine in enumerate(machines)
    ]
    looking: asyncio.Future[None] | None = None
    beside = asyncio.gather(
        ends.watch(),
        report_void(name, lambda: sum(machine.void for machine in machines)),
    )
    try:
        for one in hosts:
            await one.host.start()
        looking = asyncio.ensure_future(growth.watch())
        await log.ready(order_topic)
        gc.freeze()
        await asyncio.gather(*(one.host.ended() for one in hosts))
    finally:
        beside.cancel()
        if looking is not None:
            looking.cancel()
        for one in hosts:
            await one.stop()


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--order-topic", required=True)
    parser.add_argument("--shard", action="append", required=True, help="topic:partition@start,...")
    parser.add_argument("--name", default="generator")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--period-ms", type=float, default=4.0)
    parser.add_argument(
        "--idle-ms", type=float, default=1000 * IDLE, help="the period while nothing comes in"
    )
    parser.add_argument(
        "--trimmed", type=Path, help="a file that says what was added before the topic was trimmed"
    )
    arguments = parser.parse_args()
    command.run(
        arguments,
        lambda log: generate(
            log,
            arguments.order_topic,
            [Shard.parse(text) for text in arguments.shard],
            name=arguments.name,
            rank=arguments.rank,
            period=arguments.period_ms / 1000,
            idle=arguments.idle_ms / 1000,
            trimmed=arguments.trimmed,
        ),
    )


if __name__ == "__main__":
    main()
