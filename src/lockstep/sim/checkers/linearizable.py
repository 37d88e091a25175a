"""Linearizability of a key-value history, key by key.

The search is Wing and Gong's with Lowe's memory of configurations: pick any operation that no unpicked
operation precedes in real time, apply it to the model, and go back when the answers do not fit; a pair
(picked operations, model state) that failed once is never tried again. A history is linearizable if each
key's part of it is (Herlihy and Wing's locality), which keeps the parts small.

An operation without an answer may have taken effect at any later time, or never.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeAlias

from lockstep.sim.history import Operation, Violation
from lockstep.sim.trace import show

LINEARIZABLE = "linearizable history"
UNDECIDED = "linearizable history (undecided)"
"""Not a proof of a mistake, but never to be taken for a pass either."""
MAX_STEPS = 200_000

Step: TypeAlias = Callable[[Hashable, Any], tuple[Hashable, Any]]
"""The model of one key: (state, command) -> (state after, the answer that a single copy would give)."""


class Undecided(Exception):
    """The search went past its bound: the history is neither proven nor refuted."""


def linearizable(
    operations: Iterable[Operation],
    *,
    key: Callable[[Any], Hashable],
    step: Step,
    initial: Hashable = None,
    max_steps: int = MAX_STEPS,
) -> Iterator[Violation]:
    """One violation for each key whose history no single copy could have produced."""
    by_key: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(key(operation.command), []).append(operation)
    for name, part in by_key.items():
        try:
            stuck = _search(part, step, initial, max_steps)
        except Undecided as undecided:
            yield Violation(UNDECIDED, f"key {show(name)}: {undecided}")
            continue
        if stuck is not None:
            yield Violation(
                LINEARIZABLE,
                f"key {show(name)}: no order of its {len(part)} operations explains {stuck.client} "
                f"#{stuck.request} {show(stuck.command)} = {show(stuck.result)}",
                stuck.returned,
            )


def _search(part: list[Operation], step: Step, initial: Hashable, max_steps: int) -> Operation | None:
    """None if the operations can be ordered; else the earliest-returning one that never could be placed."""
    never = max((o.returned or o.invoked for o in part), default=0) + 1
    ordered = sorted(part, key=lambda o: (o.invoked, o.client, o.request))
    ends = [o.returned if o.returned is not None else never for o in ordered]
    answered = 0
    for number, operation in enumerate(ordered):
        if operation.returned is not None:
            answered |= 1 << number
    seen: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, Hashable]] = [(0, initial)]
    deepest = 0
    steps = 0
    while stack:
        picked, state = stack.pop()
        if picked & answered == answered:
            return None
        if (picked & answered).bit_count() > (deepest & answered).bit_count():
            deepest = picked
        # Whatever began after the first unpicked operation ended cannot come next.
        horizon = min(end for number, end in enumerate(ends) if not picked >> number & 1)
        for number, operation in enumerate(ordered):
            if picked >> number & 1:
                continue
            if operation.invoked > horizon:
                break
            steps += 1
            if steps > max_steps:
                raise Undecided(f"gave up after {max_steps} steps on a history of {len(part)} operations")
            after, answer = step(state, operation.command)
            if operation.returned is not None and answer != operation.result:
                continue
            configuration = (picked | 1 << number, after)
            if configuration not in seen:
                seen.add(configuration)
                stack.append(configuration)
    left = [o for number, o in enumerate(ordered) if answered >> number & 1 and not deepest >> number & 1]
    return min(left, key=lambda o: o.returned or 0)
