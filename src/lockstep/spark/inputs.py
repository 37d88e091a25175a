"""The inputs of a pipeline: each is one DataFrame, made of one topic or of several that are merged into one order.

    inputs=["payments"]                                    one topic
    inputs=[("payments", "refunds")]                       two topics, merged: one DataFrame, one order
    inputs=[("events", lockstep.broadcast("rules"))]       every shard of events sees all rules

Shard n of a merged input reads partition n of each of its topics, and of a broadcast one all partitions. So the
topics that are not broadcast have equally many partitions, keyed alike. As text an input is `events+rules!`, which
is also how the Java source takes it (`io.lockstep.source.Group`).

A topic that an earlier stage of the same pipeline writes to is a stage topic: all sites write to it, and whoever
reads it deduplicates it in log order (design rule 4).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lockstep.errors import UsageError
from lockstep.order.records import TOPIC

DECLARATION = 'declare it as @lockstep.pipeline(inputs=["topic"], output="topic")'


@dataclass(frozen=True)
class Broadcast:
    """A topic that every shard reads as a whole: small control streams. Made by `lockstep.broadcast`."""

    topic: str


def broadcast(topic: str) -> Broadcast:
    """Mark a topic of a merged input: every shard sees all of its records, in its own order."""
    return Broadcast(check_topic(topic))


@dataclass(frozen=True)
class Input:
    """One input. `name` is its text; two inputs are the same if their texts are."""

    members: tuple[str | Broadcast, ...]

    @classmethod
    def declare(cls, declared: "str | Broadcast | Sequence[str | Broadcast]") -> "Input":
        """What a user wrote as one element of `inputs`."""
        members = (declared,) if isinstance(declared, str | Broadcast) else tuple(declared)
        if not members:
            raise UsageError("a merged input has no topics", hint=DECLARATION)
        for member in members:
            check_topic(member.topic if isinstance(member, Broadcast) else member)
        return cls(members)

    @classmethod
    def parse(cls, name: str) -> "Input":
        return cls(tuple(Broadcast(part[:-1]) if part.endswith("!") else part for part in name.split("+")))

    @property
    def name(self) -> str:
        return "+".join(f"{one.topic}!" if isinstance(one, Broadcast) else one for one in self.members)

    def spec(self, stage_topics: Collection[str]) -> str:
        """As the Java source takes it: like `name`, with `~` behind the topics that it has to deduplicate."""
        return "+".join(
            topic + "~" * (topic in stage_topics) + "!" * isinstance(member, Broadcast)
            for member, topic in zip(self.members, self.topics, strict=True)
        )

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(one.topic if isinstance(one, Broadcast) else one for one in self.members)

    @property
    def needs_order(self) -> bool:
        """Whether its shards have several queues: then their offsets alone are no order."""
        return len(self.members) > 1 or self.has_broadcast

    @property
    def has_broadcast(self) -> bool:
        return any(isinstance(one, Broadcast) for one in self.members)

    def shards(self, partitions: Mapping[str, int]) -> int:
        """How many shards there are, given every topic's partition count."""
        counts = {one: partitions[one] for one in self.members if isinstance(one, str)}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
            raise UsageError(
                f"the topics of one input need equally many partitions, keyed alike: {told}",
                hint="repartition one, mark a small one with lockstep.broadcast, or re-key it in its own stage",
            )
        return max(counts.values(), default=1)

    def growing(
        self, order: str, partitions: Mapping[str, int], stage_topics: Collection[str]
    ) -> frozenset[str]:
        """The topics to which partitions may be added while a run goes on, given what it began with.

        With one shard all records pass through it, so a key that moves to a new partition keeps one order. With
        more, a key's state would be on one shard and its new inputs on another.
        """
        if order != "liverobin" or self.shards(partitions) != 1:
            return frozenset()
        return frozenset(one for one in self.members if isinstance(one, str) and one not in stage_topics)

    def queues(self, shard: int, partitions: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs that a shard merges, in the order of their queue numbers."""
        return tuple(
            (topic, partition)
            for member, topic in zip(self.members, self.topics, strict=True)
            for partition in range(partitions[topic])
            if isinstance(member, Broadcast) or partition == shard
        )


def check_topic(topic: object) -> str:
    if not isinstance(topic, str) or not re.fullmatch(TOPIC, topic) or topic in (".", ".."):
        raise UsageError(f"{topic!r} cannot be the name of a Kafka topic", hint=DECLARATION)
    return topic
