"""Do the sites write the same? Order-free digests of their outputs, compared range by range (design rule 12).

Every (output partition, shard, reducer) is cut into ranges of `span` sequence numbers. For each range and site
we keep a count and the sum and xor of 64-bit hashes of its records: constant memory, whatever the order. A
range is compared once two sites are past it. What a site writes a second time after a restart is not counted
again. What lies before the place at which a site joined with a copied checkpoint is not compared (`joined`).

On a difference the log decides: `locate` finds the first sequence number whose records differ, and both
records. Two sites have no majority: this says that they differ, not who is right.

Pure: records are given by `add`, findings come back; no Kafka in here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from lockstep.replicas.deduplicate import Marks
from lockstep.spark.identity import Identity, decode

SPAN = 1024
MAX_OPEN_RANGES = 200_000
"""Ranges that wait for a lagging site. Beyond this the oldest are dropped uncompared, and counted."""

_MASK = (1 << 64) - 1
Sequence = tuple[int, bytes]
"""Output partition, and the bytes of (shard, reducer)."""


class Sighting(msgspec.Struct, frozen=True):
    """One record as a site wrote it."""

    site: str
    partition: int
    offset: int
    identity: bytes
    key: bytes | None
    value: bytes | None

    @property
    def hash(self) -> int:
        """Python's own 64-bit hash: digests are compared within one process, never kept."""
        return hash((self.identity, self.key, self.value)) & _MASK


@dataclass
class RangeDigest:
    count: int = 0
    total: int = 0
    xor: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def add(self, record: Sighting) -> None:
        value = record.hash
        self.count += 1
        self.total = (self.total + value) & _MASK
        self.xor ^= value
        if self.first_offset < 0:
            self.first_offset = record.offset
        self.last_offset = record.offset

    def agrees(self, other: "RangeDigest") -> bool:
        return (self.count, self.total, self.xor) == (other.count, other.total, other.xor)


@dataclass(frozen=True)
class Suspicion:
    """Two sites' digests of a range differ: where in the log to look for the records."""

    sites: tuple[str, str]
    sequence: Sequence
    range: int
    span: int
    first_offset: int
    last_offset: int

    def covers(self, partition: int, identity: bytes) -> bool:
        place = int.from_bytes(identity[10:18], "big")
        same = (partition, identity[2:10]) == self.sequence
        return same and place // self.span == self.range


@dataclass(frozen=True)
class Divergence:
    """The first output that two sites do not agree on. None: that site did not write it."""

    identity: Identity
    sites: tuple[str, str]
    records: tuple[Sighting | None, Sighting | None]

    def __str__(self) -> str:
        told = []
        for site, record in zip(self.sites, self.records, strict=True):
            text = "nothing" if record is None else f"key={_short(record.key)} value={_short(record.value)}"
            told.append(f"{site} wrote {text}")
        place = "batch" if self.identity.shard < 0 else f"shard {self.identity.shard}, _sn"
        return f"sites diverge at {place} {self.identity.a}: {'; '.join(told)}"


@dataclass
class _Track:
    """One site in one sequence."""

    first_range: int
    current: int
    mark: bytes = b""
    ranges: dict[int, RangeDigest] = field(default_factory=dict)


class Comparator:
    """Give it every record of the output topic, in log order for each partition."""

    def __init__(self, span: int = SPAN, *, from_start: bool = True) -> None:
        """Not `from_start`: every site's first range may be cut off, and is not compared."""
        self._from_start = from_start
        self._span = span
        self._seen: dict[tuple[str, int], Marks] = {}
        self._tracks: dict[Sequence, dict[str, _Track]] = {}
        self._compared: dict[tuple[Sequence, str, str], int] = {}
        self._joined: dict[tuple[str, int], int] = {}
        self._open = 0
        self.compared = 0
        self.dropped = 0
        self.latest: dict[str, dict[int, int]] = {}
        """site -> shard -> highest `_sn` whose output was seen."""

    def joined(self, site: str, begins: Mapping[int, int]) -> None:
        """By shard: what the site lacks before this number, others wrote. To be told before what it wrote then."""
        for shard, first in begins.items():
            place = (site, shard)
            self._joined[place] = max(first, self._joined.get(place, 0))

    def add(self, record: Sighting) -> list[Suspicion]:
        marks = self._seen.get((record.site, record.partition))
        if marks is None:
            marks = self._seen[(record.site, record.partition)] = Marks()
        if not marks.accept(record.identity):
            return []
        sequence = (record.partition, record.identity[2:10])
        place = int.from_bytes(record.identity[10:18], "big")
        shard = int.from_bytes(record.identity[2:6], "big", signed=True)
        latest = self.latest.setdefault(record.site, {})
        if place > latest.get(shard, -1):
            latest[shard] = place
        number = place // self._span
        tracks = self._tracks.setdefault(sequence, {})
        track = tracks.get(record.site)
        if track is None:
            track = tracks[record.site] = _Track(number, number)
        moved_on = number > track.current
        track.current = number
        track.mark = record.identity[10:]
        if number not in track.ranges:
            track.ranges[number] = RangeDigest()
            self._open += 1
        track.ranges[number].add(record)
        return self._compare(sequence, record.site) if moved_on else []

    def settle(self) -> list[Suspicion]:
        """Compare the open ranges too, of sites that have got to the same place: for an idle input."""
        found = []
        for sequence, tracks in self._tracks.items():
            for site in tracks:
                found += self._compare(sequence, site, settling=True)
        return found

    def _compare(self, sequence: Sequence, site: str, *, settling: bool = False) -> list[Suspicion]:
        tracks = self._tracks[sequence]
        mine = tracks[site]
        found = []
        for other, track in tracks.items():
            if other == site:
                continue
            level = settling and mine.mark == track.mark
            end = min(mine.current, track.current) + level
            pair = (sequence, min(site, other), max(site, other))
            whole = (self._whole_from(*one, sequence) for one in ((site, mine), (other, track)))
            begin = max(whole)
            begin = max(begin, self._compared.get(pair, 0))
            for number in sorted({*mine.ranges, *track.ranges}):
                if begin <= number < end:
                    found += self._judge(sequence, number, (site, mine), (other, track))
            self._compared[pair] = max(begin, min(mine.current, track.current))
        self._forget(sequence)
        return found

    def _whole_from(self, site: str, track: _Track, sequence: Sequence) -> int:
        """The first range of which all was seen. Only who began where the run began has a whole first one."""
        began_with_run = self._from_start and track.first_range == min(
            one.first_range for one in self._tracks[sequence].values()
        )
        seen = track.first_range if began_with_run else track.first_range + 1
        joined = self._joined.get((site, int.from_bytes(sequence[1][:4], "big", signed=True)), 0)
        return max(seen, -(-joined // self._span))

    def _judge(
        self, sequence: Sequence, number: int, one: tuple[str, _Track], two: tuple[str, _Track]
    ) -> list[Suspicion]:
        self.compared += 1
        first = one[1].ranges.get(number, RangeDigest())
        second = two[1].ranges.get(number, RangeDigest())
        if first.agrees(second):
            return []
        offsets = [d for d in (first, second) if d.count]
        return [
            Suspicion(
                sites=(min(one[0], two[0]), max(one[0], two[0])),
                sequence=sequence,
                range=number,
                span=self._span,
                first_offset=min(d.first_offset for d in offsets),
                last_offset=max(d.last_offset for d in offsets),
            )
        ]

    def _forget(self, sequence: Sequence) -> None:
        """Drop ranges that every site is past; and the oldest, if a lagging site makes too many wait."""
        tracks = self._tracks[sequence]
        done = min(track.current for track in tracks.values()) if len(tracks) > 1 else -1
        for track in tracks.values():
            for number in [n for n in track.ranges if n < done]:
                del track.ranges[number]
                self._open -= 1
            while self._open > MAX_OPEN_RANGES and len(track.ranges) > 1:
                del track.ranges[min(track.ranges)]
                self._open -= 1
                self.dropped += 1
                track.first_range = max(track.first_range, min(track.ranges))


def locate(suspicion: Suspicion, records: Iterable[Sighting]) -> Divergence | None:
    """The first difference among the log's records of that range; each site's first copy counts."""
    written: dict[str, dict[bytes, Sighting]] = {site: {} for site in suspicion.sites}
    for record in records:
        if record.site in written and suspicion.covers(record.partition, record.identity):
            written[record.site].setdefault(record.identity[10:], record)
    one, two = (written[site] for site in suspicion.sites)
    for place in sorted({*one, *two}):
        first, second = one.get(place), two.get(place)
        if first is None or second is None or first.hash != second.hash:
            known = first or second
            assert known is not None
            return Divergence(decode(known.identity), suspicion.sites, (first, second))
    return None


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = data[:200].decode("utf-8", "replace")
    return repr(text) + ("..." if len(data) > 200 else "")
