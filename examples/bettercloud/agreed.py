"""The order that a run's sites agreed on, read from Kafka: which input was which number of its shard.

    python examples/bettercloud/agreed.py --run-folder FOLDER --bootstrap-servers HOST:PORT

compares the output of a run that has ended, or paused, with the oracle. The order comes from the order topic and
`lockstep.order.merge` alone, never from a site.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from oracle import Alert, Ordered, alert_of, compare, replay

import lockstep
from lockstep.order.merge import Merge
from lockstep.order.records import decode
from lockstep.replicas.layout import RunFolder, order_topic
from lockstep.replicas.manifest import Manifest
from lockstep.spark.inputs import Input

Queue = tuple[str, int]
READ_SECONDS = 120.0
ALL = 1 << 62


def agreed_order(
    bootstrap_servers: str,
    order: Queue,
    shards: Sequence[Sequence[Queue]],
    origins: Mapping[str, Sequence[int]],
    controls: str,
) -> dict[int, list[Ordered]]:
    """All inputs that the order topic admits so far, by shard. A skipped input has its number and no value.

    `order`: the order topic, and its partition of the first shard.
    """
    topic, base = order
    queues = {queue for shard in shards for queue in shard}
    orders = {number: read(bootstrap_servers, (topic, base + number), 0) for number in range(len(shards))}
    values = {queue: read(bootstrap_servers, queue, origins[queue[0]][queue[1]]) for queue in queues}
    agreed: dict[int, list[Ordered]] = {}
    for number, shard in enumerate(shards):
        merge = Merge(tuple(origins[name][partition] for name, partition in shard))
        for offset, value in orders[number].items():
            merge.follow(offset, decode(value or b""))
        agreed[number] = [
            Ordered(
                one.sn,
                shard[one.queue][0] == controls,
                None if one.skipped else values[shard[one.queue]].get(one.offset),
            )
            for one in merge.take(ALL)
        ]
    return agreed


def of_run(run_folder: Path, bootstrap_servers: str, merged: str, controls: str) -> dict[int, list[Ordered]]:
    """The agreed order of a run's merged input, as `a+b!`, by the run's manifest."""
    manifest = Manifest.read(RunFolder(run_folder).manifest)
    if manifest is None:
        raise SystemExit(f"{run_folder} holds no run")
    group = Input.parse(merged)
    stages = [stage for stage in manifest.all_stages if set(group.topics) <= set(stage.partitions)]
    if not stages:
        raise SystemExit(f"no stage of run {manifest.run} reads {merged}")
    stage = stages[0]
    shards = [group.queues(shard, stage.partitions) for shard in range(group.shards(stage.partitions))]
    return agreed_order(
        bootstrap_servers, (order_topic(manifest.run), stage.order_base), shards, stage.origins, controls
    )


def read(bootstrap_servers: str, queue: Queue, start: int) -> dict[int, bytes | None]:
    """What a partition holds from `start` to where it ends now, by offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bettercloud-oracle",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        at = TopicPartition(*queue, start)
        first, end = consumer.get_watermark_offsets(at, 10)
        if first > start:
            raise SystemExit(
                f"{queue[0]} was trimmed up to offset {first}: the oracle needs it from {start} on. "
                "Run with --trim-seconds 0"
            )
        consumer.assign([at])
        found: dict[int, bytes | None] = {}
        deadline = time.monotonic() + READ_SECONDS
        while end > start and consumer.position([at])[0].offset < end:
            for message in consumer.consume(10_000, 0.2):
                if message.error():
                    raise SystemExit(f"reading {queue[0]}: {message.error()}")
                found[message.offset()] = message.value()
            if time.monotonic() > deadline:
                raise SystemExit(f"{queue[0]} could not be read within {READ_SECONDS:.0f} s")
        return {offset: value for offset, value in found.items() if offset < end}
    finally:
        consumer.close()


def written_alerts(bootstrap_servers: str, topic: str, count: int, seconds: float = 10.0) -> list[Alert]:
    """The run's alerts, each once: at least `count`, or what is there when none came for so long."""
    alerts: list[Alert] = []
    with lockstep.Consumer(bootstrap_servers, topic) as consumer:
        quiet = time.monotonic()
        while len(alerts) < count and time.monotonic() - quiet < seconds:
            for record in consumer.records(0.2):
                alerts.append(alert_of(record.value or b""))
                quiet = time.monotonic()
        alerts.extend(alert_of(record.value or b"") for record in consumer.records(0.5))
    return alerts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--merged", default="customer-events+control-events!", help="the merged input")
    parser.add_argument("--controls", default="control-events", help="topic of the control events")
    parser.add_argument("--alerts", default="alerts", help="the output topic")
    parser.add_argument("--uncounted", action="store_true", help="the run ends before the Counter")
    parser.add_argument("--microbatch", action="store_true", help="alerts of one batch come in any order")
    arguments = parser.parse_args()
    order = of_run(arguments.run_folder, arguments.bootstrap_servers, arguments.merged, arguments.controls)
    expected = replay(order)
    found = written_alerts(arguments.bootstrap_servers, arguments.alerts, len(expected))
    inputs = sum(map(len, order.values()))
    difference = compare(expected, found, counted=not arguments.uncounted, in_order=not arguments.microbatch)
    if difference is not None:
        raise SystemExit(f"{inputs} inputs, {len(expected)} alerts expected: {difference}")
    print(f"{inputs} inputs, {len(expected)} alerts, all as expected")


if __name__ == "__main__":
    main()
