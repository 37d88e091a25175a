"""Eventual promises: once faults have stopped, everything is answered and everyone catches up."""

from collections.abc import Iterable, Iterator

from lockstep.sim.history import Operation, Sequence, Violation
from lockstep.sim.trace import show

EVENTUAL_ANSWER = "every command is answered once faults stop"
EVENTUAL_DELIVERY = "eventual delivery once faults stop"


def eventual_answer(operations: Iterable[Operation]) -> Iterator[Violation]:
    """No client waits for ever. Judge at the end of a run that had time enough after its calm."""
    waiting = [operation for operation in operations if operation.returned is None]
    if waiting:
        first = waiting[0]
        yield Violation(
            EVENTUAL_ANSWER,
            f"{len(waiting)} unanswered; the first is {first.client} #{first.request} {show(first.command)}, "
            f"asked at {first.invoked / 1_000_000:.6f}",
        )


def eventual_delivery(sequences: Iterable[Sequence], expected: int | None = None) -> Iterator[Violation]:
    """Every replica has delivered as much as the one that delivered most (or `expected` items)."""
    candidates = list(sequences)
    most = max((len(sequence.deliveries) for sequence in candidates), default=0)
    due = most if expected is None else expected
    for sequence in candidates:
        if len(sequence.deliveries) < due:
            yield Violation(
                EVENTUAL_DELIVERY, f"{sequence.name} stays at {len(sequence.deliveries)} of {due} deliveries"
            )
