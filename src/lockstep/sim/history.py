"""What came out of a run: all that the checkers may look at.

A history holds what the outside saw (deliveries of each node, operations of clients) and nothing of the
machines' state, so that a checker can only know the promises.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from lockstep.protocol.machine import ClientId, NodeId


class Violation(Struct, frozen=True):
    """A promise that was broken: which, how, and when (in virtual microseconds) it showed."""

    promise: str
    detail: str
    at: int | None = None


class Delivered(Struct, frozen=True):
    at: int
    item: Any


class Operation(Struct):
    """A client's command from the client's view. `returned` is None while no answer has come."""

    client: ClientId
    request: int
    command: Any
    invoked: int
    returned: int | None = None
    result: Any = None


class Sequence(Struct):
    """What one incarnation of a node delivered, in order."""

    node: NodeId
    incarnation: int
    deliveries: list[Delivered]

    @property
    def name(self) -> str:
        return self.node if self.incarnation == 1 else f"{self.node}'{self.incarnation}"

    def items(self) -> list[Any]:
        return [delivered.item for delivered in self.deliveries]


class History:
    """Deliveries by node and incarnation, operations by client, in the order in which they took place."""

    def __init__(self, nodes: Iterable[NodeId]) -> None:
        self.sequences: list[Sequence] = []
        self.operations: list[Operation] = []
        self.violations: list[Violation] = []
        """Found while the run went on (a machine that raised)."""
        self._current: dict[NodeId, Sequence] = {}
        self._nodes = list(nodes)

    def started(self, node: NodeId) -> None:
        before = self._current.get(node)
        sequence = Sequence(node, before.incarnation + 1 if before else 1, [])
        self._current[node] = sequence
        self.sequences.append(sequence)

    def delivered(self, node: NodeId, delivered: Delivered) -> None:
        self._current[node].deliveries.append(delivered)

    def current(self) -> list[Sequence]:
        """The newest incarnation of every node that ever started."""
        return [self._current[node] for node in self._nodes if node in self._current]

    def whole(self) -> list[Sequence]:
        """Every node's deliveries over all its incarnations: for protocols that go on where they were."""
        joined = {node: Sequence(node, 1, []) for node in self._nodes}
        for sequence in self.sequences:
            joined[sequence.node].deliveries.extend(sequence.deliveries)
        return list(joined.values())
