"""A record that no site can process becomes a skip, the same for all, and a dead letter (design rule 3).

Without this, one poison record would kill every site alike, for ever. What counts as one is decided by the
sites' deaths: each of them died with that very record in hand, and none got past it. Then, in this order:

1. The record goes to the topic `<run>.dead-letters`, with where it came from and why it could not be processed.
2. A skip goes to the run's seals topic. Every site that starts after it leaves the record out.

A supervisor that dies between the two leaves a dead letter twice, never a record that is in neither.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lockstep.errors import LockstepError
from lockstep.replicas.catch_up import READING
from lockstep.replicas.topics import create_topic
from lockstep.spark import seals

MOST_IN_A_ROW = 5
"""Neighbouring records that are skipped. With more of them it is hardly the records' fault."""
_TIMEOUT = 15.0


class Suspect(msgspec.Struct, frozen=True):
    """The input record that a site had in hand when it died."""

    topic: str
    shard: int
    offset: int
    reason: str

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.topic, self.shard, self.offset)

    @classmethod
    def of_status(cls, status: Mapping[str, Any]) -> "Suspect | None":
        given = status.get("suspect")
        return msgspec.convert(given, cls) if given else None

    def passed(self, status: Mapping[str, Any]) -> bool:
        """Whether a site's status shows that it got past the record."""
        reached = (status.get("positions") or {}).get(self.topic, {}).get(str(self.shard), -1)
        return status.get("state") in READING and int(reached) > self.offset


class Verdict:
    """Collects deaths, and says when they prove a record to be poison. Knows nothing of Kafka."""

    def __init__(self, sites: tuple[str, ...]) -> None:
        self._accused: dict[str, Suspect | None] = dict.fromkeys(sites)
        self._deaths: dict[tuple[str, int, int], int] = {}
        self.skipped: set[tuple[str, int, int]] = set()
        self._in_a_row: dict[tuple[str, int], tuple[int, int]] = {}

    def died(self, site: str, suspect: Suspect | None) -> Suspect | None:
        """A site died. The record to skip, if this death settles it; raises when records are not to blame."""
        self._accused[site] = suspect
        if suspect is None:
            return None
        self._deaths[suspect.place] = self._deaths.get(suspect.place, 0) + 1
        accused = {one.place if one is not None else None for one in self._accused.values()}
        if accused != {suspect.place} or self._deaths[suspect.place] < 2 or suspect.place in self.skipped:
            return None
        last, row = self._in_a_row.get((suspect.topic, suspect.shard), (-2, 0))
        row = row + 1 if suspect.offset == last + 1 else 1
        if row > MOST_IN_A_ROW:
            raise LockstepError(
                f"{row} records in a row of {suspect.topic}-{suspect.shard} cannot be processed, up to offset "
                f"{suspect.offset}: {suspect.reason}",
                hint="it is hardly the records' fault: correct the cause and run it again",
            )
        self._in_a_row[(suspect.topic, suspect.shard)] = (suspect.offset, row)
        self.skipped.add(suspect.place)
        return suspect

    def alive(self, site: str, status: Mapping[str, Any]) -> None:
        """A site that got past its suspect clears it: what killed it was something else."""
        suspect = self._accused[site]
        if suspect is not None and suspect.passed(status):
            self._accused[site] = None
            self._deaths.pop(suspect.place, None)


def dead_letter_topic(run: str) -> str:
    return f"{run}.dead-letters"


def bury(connection: Mapping[str, Any], run: str, seals_topic: str, suspect: Suspect) -> None:
    """Keep the record as a dead letter and append the skip."""
    record = _read(connection, suspect)
    letters = dead_letter_topic(run)
    create_topic(AdminClient(dict(connection)), NewTopic(letters, 1, config={"retention.ms": "-1"}), _TIMEOUT)
    producer = Producer({**connection, "enable.idempotence": True})
    headers = [
        *(record.headers() or ()),
        ("lockstep.topic", suspect.topic.encode()),
        ("lockstep.partition", b"%d" % suspect.shard),
        ("lockstep.offset", b"%d" % suspect.offset),
        ("lockstep.reason", suspect.reason.encode()[:1000]),
    ]
    _write(producer, letters, record.value(), key=record.key(), headers=headers)
    skip = seals.skip(suspect.topic, suspect.shard, suspect.offset, suspect.reason)
    _write(producer, seals_topic, skip, partition=0)


def _read(connection: Mapping[str, Any], suspect: Suspect) -> Any:
    consumer = Consumer({**connection, "group.id": "lockstep.poison", "auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(suspect.topic, suspect.shard, suspect.offset)])
        record = consumer.poll(_TIMEOUT)
    finally:
        consumer.close()
    if record is None or record.error() is not None or record.offset() != suspect.offset:
        raise LockstepError(f"cannot read {suspect.topic}-{suspect.shard} at {suspect.offset} again")
    return record


def _write(producer: Any, topic: str, value: bytes | None, **more: Any) -> None:
    failures: list[Any] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error), **more)
    producer.flush(_TIMEOUT)
    if failures != [None]:
        raise LockstepError(f"cannot write to {topic}: {failures or 'no answer'}", hint="is the broker up?")
