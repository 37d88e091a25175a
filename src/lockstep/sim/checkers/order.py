"""Promises about sequences of deliveries: same order, prefix agreement, no gap, exactly once."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from lockstep.sim.history import Sequence, Violation
from lockstep.sim.trace import show

SAME_ORDER = "same order at all replicas"
PREFIX_AGREEMENT = "prefix agreement"
NO_GAP = "no gap"
EXACTLY_ONCE = "exactly once"


def _itself(item: Any) -> Any:
    return item


def same_order(
    sequences: Iterable[Sequence], identity: Callable[[Any], Hashable] = _itself
) -> Iterator[Violation]:
    """Any two replicas deliver the items that both deliver in the same relative order."""
    ranked = [
        (sequence, {identity(delivered.item): rank for rank, delivered in enumerate(sequence.deliveries)})
        for sequence in sequences
    ]
    for number, (one, _) in enumerate(ranked):
        for other, ranks in ranked[number + 1 :]:
            last, before = -1, None
            for delivered in one.deliveries:
                rank = ranks.get(identity(delivered.item))
                if rank is None:
                    continue
                if rank < last:
                    yield Violation(
                        SAME_ORDER,
                        f"{one.name} delivers {show(before)} before {show(delivered.item)}, "
                        f"{other.name} the other way round",
                        max(delivered.at, other.deliveries[last].at),
                    )
                    break
                last, before = rank, delivered.item


def prefix_agreement(
    sequences: Iterable[Sequence], identity: Callable[[Any], Hashable] = _itself
) -> Iterator[Violation]:
    """Of any two sequences of deliveries, one is a prefix of the other."""
    candidates = list(sequences)
    if not candidates:
        return
    longest = max(candidates, key=lambda sequence: len(sequence.deliveries))
    for sequence in candidates:
        pairs = zip(sequence.deliveries, longest.deliveries, strict=False)
        for place, (mine, theirs) in enumerate(pairs, start=1):
            if identity(mine.item) != identity(theirs.item):
                yield Violation(
                    PREFIX_AGREEMENT,
                    f"delivery {place}: {sequence.name} has {show(mine.item)}, "
                    f"{longest.name} has {show(theirs.item)}",
                    max(mine.at, theirs.at),
                )
                break


def no_gap(
    sequences: Iterable[Sequence], number: Callable[[Any], int], *, first: int | None = None
) -> Iterator[Violation]:
    """Every sequence's numbers go up by one, from `first` (or from wherever the sequence begins)."""
    for sequence in sequences:
        expected = first
        for delivered in sequence.deliveries:
            found = number(delivered.item)
            if expected is not None and found != expected:
                yield Violation(
                    NO_GAP,
                    f"{sequence.name} delivers number {found} where {expected} is due: {show(delivered.item)}",
                    delivered.at,
                )
                break
            expected = found + 1


def exactly_once(
    sequences: Iterable[Sequence],
    identity: Callable[[Any], Hashable | None],
    required: Iterable[Hashable] = (),
) -> Iterator[Violation]:
    """No sequence holds an identity twice, and each `required` one (an acknowledged command) is in the
    longest sequence. An identity of None is not counted (a no-op)."""
    candidates = list(sequences)
    for sequence in candidates:
        seen: set[Hashable] = set()
        for delivered in sequence.deliveries:
            name = identity(delivered.item)
            if name is None:
                continue
            if name in seen:
                yield Violation(EXACTLY_ONCE, f"{sequence.name} delivers {show(name)} twice", delivered.at)
                break
            seen.add(name)
    wanted = list(required)
    if not wanted:
        return
    longest = max(candidates, key=lambda sequence: len(sequence.deliveries), default=None)
    present = {identity(delivered.item) for delivered in longest.deliveries} if longest else set()
    for name in wanted:
        if name not in present:
            where = f"{longest.name} never delivers it" if longest else "nobody delivers anything"
            yield Violation(EXACTLY_ONCE, f"{show(name)} was acknowledged, but {where}")
            break
