"""A heartbeat process: puts a pulse into all stage topics that a run merges with heartbeats in band.

    python -m lockstep.order.beat --bootstrap-servers HOST:PORT --heartbeat-topic T --rank 0 --into a:0,a:1,b:0,b:1

One pulse for all of them: a topic that two stages read gets each heartbeat once. Start several with ranks 0, 1, 2.
They hold nothing that matters: whoever goes on reads the last number from the heartbeat topic, which is compacted
to little more than that.
"""

import gc

from lockstep.log.interface import Log
from lockstep.order import command
from lockstep.order.inband import HeartbeatGenerator, Place
from lockstep.order.inputs import Shard
from lockstep.protocol.host import Host

RECALLED = 100
"""Heartbeats that a new process reads of what is there: one would do."""


async def beat(
    log: Log, heartbeat_topic: str, into: tuple[Place, ...], *, name: str, rank: int, period: float
) -> None:
    """Beat until cancelled, or until the log fails for good."""
    first = (await log.first_offsets(heartbeat_topic)).get(0, 0)
    last = (await log.end_offsets(heartbeat_topic)).get(0, 0)
    offset = max(first, last - RECALLED)
    machine = HeartbeatGenerator(
        heartbeat_topic, name=name, into=into, rank=rank, period=period, offset=offset
    )
    host = Host(machine, node=name, log=log)
    try:
        await host.start()
        for topic in sorted({topic for topic, _ in into}):
            await log.ready(topic)
        gc.freeze()
        await host.ended()
    finally:
        await host.stop()


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--heartbeat-topic", required=True)
    parser.add_argument("--into", required=True, help="topic:partition,...")
    parser.add_argument("--name", default="heart")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--period-ms", type=float, default=4.0)
    arguments = parser.parse_args()
    command.run(
        arguments,
        lambda log: beat(
            log,
            arguments.heartbeat_topic,
            Shard.parse(arguments.into).queues,
            name=arguments.name,
            rank=arguments.rank,
            period=arguments.period_ms / 1000,
        ),
    )


if __name__ == "__main__":
    main()
