"""First arrival wins: turns the sites' duplicate outputs into one sequence (design rule 8).

All sites write to one output topic. In every partition of it, each (shard, reducer) is a sequence that
every site writes in the same order, from its checkpoint on and without a hole. So the greatest identity
that was accepted, the **mark**, says everything about what was seen: what is above it is new, what is not
is a duplicate. Memory is one mark per (shard, reducer), however long the run.

Marks are never compared across output partitions: a dying site may have written 13 to one partition and
lost 12 on another, and 12 must still be accepted there when another site brings it.

An identity's bytes are big-endian and not negative where they are compared, so that comparing bytes is
comparing (a, b). That keeps the machine at a slice, a lookup and a comparison for every record. This file
knows nothing of Kafka.
"""

import base64
import zlib
from collections.abc import Iterator
from typing import TypeGuard

from lockstep.errors import LockstepError
from lockstep.spark.identity import SIZE, VERSION

MAX_SEQUENCES = 1 << 15
"""Bound on the (shard, reducer) pairs of one output partition, which a peer chooses: all marks of a partition
fit into one Kafka record."""

_SEQUENCE = slice(2, 10)
_PLACE = slice(10, SIZE)
_ENTRY_SIZE = 8 + 12


class Marks:
    """What was accepted in one output partition: the deduplicator's whole state."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[bytes, bytes] = {}

    def accept(self, identity: bytes) -> bool:
        """Whether this output is new. If it is, it is marked as accepted."""
        sequence = identity[_SEQUENCE]
        place = identity[_PLACE]
        mark = self._places.get(sequence)
        if mark is None:
            if len(self._places) >= MAX_SEQUENCES:
                raise LockstepError(
                    f"more than {MAX_SEQUENCES} (shard, reducer) pairs in one output partition",
                    hint="something else than a run's sites writes to this topic",
                )
        elif place <= mark:
            return False
        self._places[sequence] = place
        return True

    def __len__(self) -> int:
        return len(self._places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Marks) and self._places == other._places

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Iterator[tuple[int, int, int, int]]:
        """(shard, reducer, a, b) of every mark."""
        for sequence, place in self._places.items():
            yield (
                int.from_bytes(sequence[:4], "big", signed=True),
                int.from_bytes(sequence[4:], "big", signed=True),
                int.from_bytes(place[:8], "big"),
                int.from_bytes(place[8:], "big"),
            )

    def encode(self) -> bytes:
        """All marks, sorted: equal marks have equal bytes."""
        return b"".join(sequence + place for sequence, place in sorted(self._places.items()))

    @classmethod
    def decode(cls, data: bytes) -> "Marks":
        if len(data) % _ENTRY_SIZE or len(data) > MAX_SEQUENCES * _ENTRY_SIZE:
            raise LockstepError(f"marks of {len(data)} bytes are damaged", hint="they were written elsewhere")
        marks = cls()
        for start in range(0, len(data), _ENTRY_SIZE):
            marks._places[data[start : start + 8]] = data[start + 8 : start + _ENTRY_SIZE]
        return marks

    def to_text(self) -> str:
        """As text that fits the metadata of a Kafka offset commit (short where few marks exist)."""
        return base64.b85encode(zlib.compress(self.encode(), 6)).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> "Marks":
        try:
            inflate = zlib.decompressobj()
            data = inflate.decompress(base64.b85decode(text), MAX_SEQUENCES * _ENTRY_SIZE + 1)
        except (ValueError, zlib.error) as error:
            raise LockstepError("committed marks are damaged", hint="they were written elsewhere") from error
        if not inflate.eof:
            raise LockstepError("committed marks are cut off", hint="they were written elsewhere")
        return cls.decode(data)


def well_formed(identity: bytes | None) -> TypeGuard[bytes]:
    """Whether these header bytes are an identity that `Marks` can compare."""
    return (
        identity is not None
        and len(identity) == SIZE
        and identity[0] == VERSION
        and identity[10] < 0x80
        and identity[18] < 0x80
    )
