"""The identity that the sink gives every output record, and the partition it goes to.

Sites write the same outputs to one topic; whoever reads it keeps the first arrival of each. For that every
record carries its identity in a header (design rule 6): in the real-time engine the input that caused it
(shard, `_sn`) and a count of the rows that one input caused in one reducer; in the micro-batch engine the
sealed batch and the row's place in it. Within one (output partition, shard, reducer) identities only grow,
so a reader needs one mark per such triple and no memory of what it has seen (rule 8).

The Java sink writes this format, Python reads it; `tests/vectors/` holds both to the same bytes.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

IDENTITY_HEADER: Final = "ls"
SITE_HEADER: Final = "lss"

VERSION: Final = 1
REALTIME: Final = 0
MICROBATCH: Final = 1
NO_SHARD: Final = -1
"""The shard of a micro-batch output: a batch is cut across all shards."""

_LAYOUT = struct.Struct(">BBiiqi")
SIZE: Final = _LAYOUT.size

Headers = Iterable[tuple[str, bytes | None]] | None


class IdentityError(ValueError):
    """The record was not written by a Lockstep sink, or by one of another version."""


class Identity(NamedTuple):
    """`(a, b)` is `(_sn, k)` in real time and `(sealed batch, ordinal)` in micro-batch."""

    engine: int
    shard: int
    reducer: int
    a: int
    b: int

    @property
    def sequence(self) -> tuple[int, int]:
        """The sequence that this identity is a member of, within one output partition."""
        return (self.shard, self.reducer)

    @property
    def mark(self) -> tuple[int, int]:
        """Its place in that sequence: a reader accepts what is above the greatest mark it accepted."""
        return (self.a, self.b)


def encode(identity: Identity) -> bytes:
    return _LAYOUT.pack(VERSION, identity.engine, identity.shard, identity.reducer, identity.a, identity.b)


def decode(data: bytes) -> Identity:
    """Raise `IdentityError` for anything but an identity of this version."""
    if len(data) != SIZE:
        raise IdentityError(f"an identity has {SIZE} bytes, this one has {len(data)}")
    version, engine, shard, reducer, a, b = _LAYOUT.unpack(data)
    if version != VERSION:
        raise IdentityError(f"identity of version {version}; this Lockstep reads version {VERSION}")
    if engine not in (REALTIME, MICROBATCH):
        raise IdentityError(f"identity of an unknown engine {engine}")
    return Identity(engine, shard, reducer, a, b)


def of_headers(headers: Headers) -> Identity | None:
    """The identity among a record's headers, or None for a record that no Lockstep sink wrote."""
    for name, value in headers or ():
        if name == IDENTITY_HEADER and value is not None:
            return decode(value)
    return None


def site_of_headers(headers: Headers) -> str | None:
    """Which site wrote the record."""
    for name, value in headers or ():
        if name == SITE_HEADER and value is not None:
            return value.decode("utf-8", errors="replace")
    return None


def output_partition(key: bytes | None, identity: Identity, count: int) -> int:
    """Where a row goes: a function of the row alone, the same on every site (rule 7)."""
    return (murmur2(encode(identity) if key is None else key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 that Kafka's Java clients partition by, as an unsigned number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = (k * multiplier) & mask
        k ^= k >> 24
        h = ((h * multiplier) & mask) ^ ((k * multiplier) & mask)
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * multiplier) & mask
    h ^= h >> 13
    h = (h * multiplier) & mask
    return h ^ (h >> 15)
