"""Acyclic order across groups: the promise of atomic multicast that no single group can see broken.

Each group may be in perfect agreement with itself, and still no single order of all messages may exist:
group 1 delivers a before b, group 2 b before c, group 3 c before a. The order "delivered right before, at
some member" must have no cycle (AtomicKafka's and every atomic multicast's "uniform acyclic order").
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from lockstep.sim.history import Sequence, Violation
from lockstep.sim.trace import show

ACYCLIC_ORDER = "acyclic order across groups"


def acyclic_order(
    sequences: Iterable[Sequence], identity: Callable[[Any], Hashable] = lambda item: item
) -> Iterator[Violation]:
    """The union of all members' delivery orders has no cycle. Reports one cycle, if there is any."""
    successors: dict[Hashable, dict[Hashable, tuple[str, int]]] = {}
    for sequence in sequences:
        before: Hashable | None = None
        for place, delivered in enumerate(sequence.deliveries):
            name = identity(delivered.item)
            successors.setdefault(name, {})
            if place and before != name:
                successors[before].setdefault(name, (sequence.name, delivered.at))
            before = name
    cycle = _cycle({name: list(edges) for name, edges in successors.items()})
    if cycle is None:
        return
    steps = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    told = ", ".join(f"{show(a)} before {show(b)} at {successors[a][b][0]}" for a, b in steps[:8])
    yield Violation(ACYCLIC_ORDER, told, max(successors[a][b][1] for a, b in steps))


def _cycle(successors: dict[Hashable, list[Hashable]]) -> list[Hashable] | None:
    """Some cycle of the graph, or None. Depth first, without recursion: histories are long."""
    done: set[Hashable] = set()
    for root in successors:
        if root in done:
            continue
        path: list[Hashable] = [root]
        on_path = {root: 0}
        stack = [iter(successors[root])]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                finished = path.pop()
                del on_path[finished]
                done.add(finished)
                stack.pop()
            elif following in on_path:
                return path[on_path[following] :]
            elif following not in done:
                on_path[following] = len(path)
                path.append(following)
                stack.append(iter(successors[following]))
    return None
