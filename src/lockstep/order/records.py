"""What an order topic holds: cuts, claims, orders, skips. Never data.

The order topic has one partition per shard. Each record is a small JSON object, so that the Java source, the
Python machines and a person with a console consumer read the same thing. A **queue** is one input partition
of the shard, named by its index in the shard's declaration; behind those come the partitions that cuts added.

What a reader accepts depends on the prefix of the partition alone, never on time or on who reads it: see
`Acceptance` in `acceptance.py`.
"""

from typing import Annotated, TypeAlias

import msgspec

from lockstep.errors import LockstepError

LIMIT = 1_000_000
"""No order record is larger than this many bytes: a reader refuses what a stranger could make it hold."""

MAX_QUEUES = 1000
"""A shard has at most so many queues, with those that were added."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
TOPIC = r"[a-zA-Z0-9._-]{1,249}"
"""What Kafka allows as the name of a topic."""
Topic: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{TOPIC}\Z")]
Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Queue: TypeAlias = tuple[str, int]
"""The topic and the partition that a queue is."""


class Cut(
    msgspec.Struct, frozen=True, tag_field="is", tag="cut", forbid_unknown_fields=True, omit_defaults=True
):
    """LiveRobin (section V): a heartbeat stands in each queue right before offset `ends[queue]`.

    `added`: the queues behind those that the run began with, in the order of their numbers.
    """

    ends: tuple[Number, ...]
    by: str = ""
    added: tuple[tuple[Topic, Partition], ...] = ()


class Claim(msgspec.Struct, frozen=True, tag_field="is", tag="claim", forbid_unknown_fields=True):
    """KaZoo (section IV): a new leader opens its epoch; orders of lower epochs behind this record are void."""

    epoch: Number
    by: str = ""


class Order(msgspec.Struct, frozen=True, tag_field="is", tag="order", forbid_unknown_fields=True):
    """KaZoo: consume these (queue, count) runs next. `version` counts the accepted orders of the shard."""

    epoch: Number
    version: Number
    runs: tuple[tuple[Number, Number], ...]


class Skip(msgspec.Struct, frozen=True, tag_field="is", tag="skip", forbid_unknown_fields=True):
    """This one input is left out by every replica alike, because it cannot be processed."""

    queue: Number
    offset: Number
    reason: str


OrderRecord: TypeAlias = Cut | Claim | Order | Skip

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[OrderRecord] = msgspec.json.Decoder(Cut | Claim | Order | Skip)


def encode(record: OrderRecord) -> bytes:
    data = _encoder.encode(record)
    if len(data) > LIMIT:
        raise LockstepError(
            f"an order record of {len(data)} bytes exceeds the limit of {LIMIT}",
            hint="lower the batch cap per queue",
        )
    return data


def decode(data: bytes) -> OrderRecord | None:
    """The record, or None for anything that is not one: a reader counts it as void and goes on."""
    if len(data) > LIMIT:
        return None
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
