"""The processes that make a run's order: generators (`liverobin`, `inband`), leaders and coordination (`kazoo`).

None of them is in a record's way to an output, and none matters alone: of the generators one publishes and the
others watch, of the leaders one is elected, of the servers a majority is enough. The supervisor keeps them alive
as it does sites. A run has one order topic, with a partition for each shard of each input of each stage; a process
serves them all.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from lockstep.coordination import membership
from lockstep.coordination.membership import Member
from lockstep.ports import free_ports
from lockstep.replicas.layout import (
    ProcessFolder,
    RunFolder,
    heartbeat_topic,
    order_topic,
    read_json,
    write_json,
)
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.settings import RunSettings
from lockstep.replicas.supervisor import own_command
from lockstep.spark.pipeline import Pipeline

GENERATORS = 2
LEADERS = 2
SERVERS = 3
_TAIL_BYTES = 8192


def commands(
    where: RunFolder, settings: RunSettings, manifest: Manifest, stages: Sequence[Pipeline]
) -> dict[str, Sequence[str]]:
    """The command of each process, by its name; none under order `partition`."""
    shards = [
        text
        for frozen, pipeline in zip(manifest.all_stages, stages, strict=True)
        if frozen.has_order_topic
        for text in shards_of(frozen, pipeline, manifest.stage_topics)
    ]
    hearts = _hearts(where, settings, manifest, stages)
    if not shards:
        return hearts
    common = [
        *("--bootstrap-servers", settings.bootstrap_servers),
        *("--order-topic", order_topic(settings.name)),
        *("--options", str(where.kafka_options)),
        *(part for text in shards for part in ("--shard", text)),
    ]
    if any(frozen.order == "kazoo" for frozen in manifest.all_stages):
        return _kazoo(where, settings, common)
    generating = [*common, *("--trimmed", str(where.trimmed))]
    return {**_ranked("lockstep.order.generate", "generator", settings, generating), **hearts}


def shards_of(manifest: Manifest, pipeline: Pipeline, stage_topics: Collection[str] = ()) -> list[str]:
    """The shards of a stage as generators and leaders take them: `topic:partition@start+,...`."""
    partitions, origins = manifest.partitions, manifest.origins
    found = []
    for group in pipeline.groups:
        growing = group.growing(manifest.order, partitions, stage_topics)
        found += [
            ",".join(
                f"{topic}:{n}@{origins[topic][n]}" + "+" * (topic in growing)
                for topic, n in group.queues(shard, partitions)
            )
            for shard in range(group.shards(partitions))
        ]
    return found


def _hearts(
    where: RunFolder, settings: RunSettings, manifest: Manifest, stages: Sequence[Pipeline]
) -> dict[str, Sequence[str]]:
    """One pulse for all stage topics that are merged with heartbeats in band."""
    queues = {
        queue
        for frozen, pipeline in zip(manifest.all_stages, stages, strict=True)
        if frozen.order == "inband"
        for group in pipeline.groups
        for shard in range(group.shards(frozen.partitions))
        for queue in group.queues(shard, frozen.partitions)
    }
    if not queues:
        return {}
    common = [
        *("--bootstrap-servers", settings.bootstrap_servers),
        *("--heartbeat-topic", heartbeat_topic(settings.name)),
        *("--options", str(where.kafka_options)),
        *("--into", ",".join(f"{topic}:{partition}" for topic, partition in sorted(queues))),
    ]
    return _ranked("lockstep.order.beat", "heart", settings, common)


def _ranked(module: str, name: str, settings: RunSettings, common: Sequence[str]) -> dict[str, Sequence[str]]:
    """Several of a kind: the one of rank 0 works, the others watch."""
    period = [] if settings.period_ms is None else ["--period-ms", str(settings.period_ms)]
    return {
        f"{name}-{rank + 1}": own_command(
            module, *("--name", f"{name}-{rank + 1}"), *("--rank", str(rank)), *period, *common
        )
        for rank in range(GENERATORS)
    }


def said(where: RunFolder) -> dict[str, dict[str, Any]]:
    """What the order's processes said last, by process and then by kind (`order/report.py`)."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted((where.path / "orders").glob("*/")):
        log = ProcessFolder(folder).log
        try:
            with log.open("rb") as lines:
                lines.seek(max(0, log.stat().st_size - _TAIL_BYTES))
                texts = lines.read().decode(errors="replace").splitlines()
        except OSError:
            continue
        for text in texts:
            if text.startswith('{"is":'):
                try:
                    one = json.loads(text)
                except ValueError:  # the tail began within a line
                    continue
                found.setdefault(folder.name, {})[str(one["is"])] = one
    return found


def void_records(where: RunFolder) -> int:
    """How many records of the order topic did not count. Many mean that somebody else writes to it."""
    return max((int(one.get("void", {}).get("records", 0)) for one in said(where).values()), default=0)


def coordination(where: RunFolder, settings: RunSettings, manifest: Manifest) -> str | None:
    """Where the coordination service of a run is; None if its order needs none."""
    kazoo = any(frozen.order == "kazoo" for frozen in manifest.all_stages)
    return _ensemble(where, settings) if kazoo else None


def _ensemble(where: RunFolder, settings: RunSettings) -> str:
    return settings.coordination or ",".join(str(member.client) for member in _members(where).values())


def _kazoo(where: RunFolder, settings: RunSettings, common: Sequence[str]) -> dict[str, Sequence[str]]:
    commands: dict[str, Sequence[str]] = {}
    if settings.coordination is None:
        members = _members(where)
        for server in members:
            commands[f"coordination-{server}"] = own_command(
                "lockstep",
                *("coord", "serve", "--id", str(server), "--servers", membership.format_list(members)),
                *("--data", str(where.orders(f"coordination-{server}").path / "data")),
            )
    for number in range(1, LEADERS + 1):
        name = f"leader-{number}"
        commands[name] = own_command(
            "lockstep.order.lead", "--name", name, "--coordination", _ensemble(where, settings), *common
        )
    return commands


def _members(where: RunFolder) -> dict[int, Member]:
    """The run's own ensemble: its ports are chosen once, so that a restarted server finds the others."""
    file = where.path / "orders" / "ensemble.json"
    noted = read_json(file)
    if noted is None:
        ports = iter(free_ports(2 * SERVERS))
        members = {i: Member("127.0.0.1", next(ports), next(ports)) for i in range(1, SERVERS + 1)}
        noted = {"servers": membership.format_list(members)}
        write_json(file, noted)
    return membership.parse(str(noted["servers"]))
