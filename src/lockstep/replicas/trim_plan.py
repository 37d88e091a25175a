"""How far order topics and stage topics of a run may be trimmed: behind every site's checkpoint, for every reader.

A run's order topic has one reader for each partition: a shard of a stage. A stage topic may have several (two
stages that read it, a broadcast): what one of them still needs stays. Users' own topics are never touched.

Pure: positions are given, a plan comes back. `order/trim.py` is the rule for one shard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lockstep.errors import LockstepError
from lockstep.order import trim
from lockstep.order.merge import Position as MergePosition
from lockstep.order.trim import SiteProgress
from lockstep.replicas.layout import write_json
from lockstep.replicas.manifest import Manifest
from lockstep.spark.pipeline import Pipeline
from lockstep.spark.position import InBandPlace, Place, Position, merge_place


class Reader(msgspec.Struct, frozen=True):
    """One shard of one input of a stage."""

    stage: str
    """Empty for the last one, as in the names of checkpoints."""
    input: str
    """As Spark's offset names it."""
    shard: int
    order_partition: int | None
    """None where there is no order topic."""
    queues: tuple[tuple[str, int], ...]


class Readers(msgspec.Struct, frozen=True):
    """All readers of a run, and the topics that are Lockstep's own."""

    readers: tuple[Reader, ...]
    stage_topics: frozenset[str]

    @property
    def anything(self) -> bool:
        """Whether there is a topic to trim at all."""
        return bool(self.stage_topics) or any(one.order_partition is not None for one in self.readers)

    def write(self, path: Path) -> None:
        write_json(path, msgspec.to_builtins(self))

    @classmethod
    def read(cls, path: Path) -> "Readers":
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise LockstepError(f"{path} does not say who reads what: {error}") from error


@dataclass(frozen=True)
class SiteCheckpoints:
    """Where a site may go back to: by stage, its inputs' positions; None for a stage without a checkpoint."""

    site: str
    stages: Mapping[str, Sequence[Position] | None]
    catching_up: bool = False


@dataclass
class Plan:
    """What nobody needs any more."""

    orders: dict[int, MergePosition] = field(default_factory=dict)
    """By partition of the order topic: where the one that is furthest behind is."""
    topics: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of stage topics: records before this offset."""

    def still(self, later: "Plan") -> "Plan":
        """What nobody needed at the time of both plans."""
        return Plan(
            {
                partition: min(position, later.orders[partition], key=lambda one: one.order_offset)
                for partition, position in self.orders.items()
                if partition in later.orders
            },
            {
                queue: min(at, later.topics[queue])
                for queue, at in self.topics.items()
                if queue in later.topics
            },
        )


def readers_of(manifest: Manifest, pipelines: Sequence[Pipeline]) -> Readers:
    found: list[Reader] = []
    for frozen, pipeline in zip(manifest.all_stages, pipelines, strict=True):
        base = frozen.order_base
        for group in pipeline.groups:
            shards = group.shards(frozen.partitions)
            found += [
                Reader(
                    stage="" if frozen is manifest else pipeline.name,
                    input=group.spec(manifest.stage_topics),
                    shard=shard,
                    order_partition=base + shard if frozen.has_order_topic else None,
                    queues=group.queues(shard, frozen.partitions),
                )
                for shard in range(shards)
            ]
            base += shards
    return Readers(tuple(found), manifest.stage_topics)


def plan(readers: Readers, sites: Sequence[SiteCheckpoints]) -> Plan:
    """What may be deleted, given the checkpoints of *all* sites."""
    made = Plan()
    kept: set[tuple[str, int]] = set()
    for reader in readers.readers:
        needs = _needs(reader, sites)
        if isinstance(needs, trim.Prefix) and reader.order_partition is not None:
            made.orders[reader.order_partition] = needs.position
        before = () if needs is None else needs.inputs if isinstance(needs, trim.Prefix) else needs
        for number, queue in enumerate(reader.queues):
            if queue[0] in readers.stage_topics:
                if number < len(before):
                    made.topics[queue] = min(before[number], made.topics.get(queue, before[number]))
                else:
                    kept.add(queue)
    for queue in kept:
        made.topics.pop(queue, None)
    return made


def _needs(reader: Reader, sites: Sequence[SiteCheckpoints]) -> trim.Prefix | tuple[int, ...] | None:
    """From where on a reader's inputs are needed; None: all of them."""
    progress: list[SiteProgress] = []
    offsets: list[tuple[int, ...] | None] = []
    for site in sites:
        at = [
            merge_place(one.positions[reader.shard])
            for one in site.stages.get(reader.stage) or ()
            if one.topic == reader.input and reader.shard in one.positions
        ]
        if reader.order_partition is None:
            known = [one for one in map(_offsets, at) if one is not None]
            offsets += known if known and not site.catching_up else [None]
        else:  # an input that the plan uses twice has two positions
            places: list[Place | None] = [place for place in at if isinstance(place, Place)]
            places = places or [None]
            progress += [SiteProgress(site.site, _position(one), site.catching_up) for one in places]
    if reader.order_partition is not None:
        return trim.prefix(progress)
    sure = [one for one in offsets if one is not None]
    if not sure or len(sure) < len(offsets):
        return None
    return tuple(min(queue) for queue in zip(*sure, strict=True))


def _offsets(at: int | Place | InBandPlace) -> tuple[int, ...] | None:
    """How far each queue is read, where no order topic is needed to say it."""
    match at:
        case int(offset):
            return (offset,)
        case InBandPlace(inputs=inputs):
            return inputs
    return None


def _position(place: Place | None) -> MergePosition | None:
    if place is None:
        return None
    fields = msgspec.structs.asdict(place)
    pairs = tuple(zip(place.skips[::2], place.skips[1::2], strict=True))
    return MergePosition(**{**fields, "skips": pairs})
