"""The replicated log in the simulator: three or five nodes, clients that read and write a few keys."""

from collections.abc import Hashable, Iterable
from random import Random
from typing import Any, ClassVar

from lockstep.errors import UsageError
from lockstep.protocol.machine import ClientId, Machine, Message, NodeId
from lockstep.sim.checkers.linearizable import linearizable
from lockstep.sim.checkers.order import exactly_once, no_gap, prefix_agreement
from lockstep.sim.checkers.progress import eventual_answer, eventual_delivery
from lockstep.sim.faults import MILLISECOND
from lockstep.sim.history import History, Operation, Violation
from lockstep.sim.history import Sequence as Deliveries
from lockstep.sim.replog.bugs import Bug
from lockstep.sim.replog.messages import Answer, Committed, CompareAndSet, Get, NotLeader, Put
from lockstep.sim.replog.node import LogNode
from lockstep.sim.scenario import Scenario

KEYS = ("x", "y", "z")


class ReplicatedLog(Scenario):
    title: ClassVar[str] = "a small replicated log with a key-value store"
    bugs: ClassVar[tuple[str, ...]] = tuple(bug.value for bug in Bug)

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self._bug = _bug(bug)
        self.nodes = [f"n{number}" for number in range(1, rng.choice((3, 3, 3, 4, 5)) + 1)]
        self.client_count = rng.randint(2, 4)
        self._commands = rng.randint(8, 24)
        self._batch = rng.choice((1, 2, 8))
        self._spread = rng.choice((0.2, 0.5, 1.0))
        self._patience = rng.choice((0.08, 0.2))
        self.think_time = rng.choice((5, 30, 100)) * MILLISECOND

    def machine(self, node: NodeId) -> Machine:
        return LogNode(
            node,
            self.nodes,
            heartbeat=self._patience / 4,
            patience=self._patience,
            spread=self._spread,
            batch=self._batch,
            bug=self._bug,
        )

    def command(self, client: ClientId, request: int, rng: Random) -> Message | None:
        if request > self._commands:
            return None
        return random_command(client, request, rng)

    def redirect(self, result: Any) -> NodeId | None:
        return result.leader if isinstance(result, NotLeader) else None

    def settled(self, history: History) -> bool:
        lengths = {len(sequence.deliveries) for sequence in history.current()}
        return self.clients is not None and self.clients.finished() and len(lengths) == 1

    def check(self, history: History) -> Iterable[Violation]:
        yield from judge(history.sequences, history.operations)
        yield from eventual_answer(history.operations)
        yield from eventual_delivery(history.current())


def random_command(client: ClientId, request: int, rng: Random) -> Put | Get | CompareAndSet:
    """A read, a write that names its writer (so that every value is unique), or a conditional write."""
    key, value = rng.choice(KEYS), f"{client}.{request}"
    chance = rng.random()
    if chance < 0.4:
        return Get(key)
    if chance < 0.8:
        return Put(key, value)
    expected = f"c{rng.randint(1, 4)}.{rng.randint(1, max(1, request))}" if rng.random() < 0.8 else None
    return CompareAndSet(key, expected, value)


def judge(sequences: Iterable[Deliveries], operations: Iterable[Operation]) -> Iterable[Violation]:
    """The promises that hold at any time, whatever fails; for simulated and for real runs."""
    delivered, asked = list(sequences), list(operations)
    yield from prefix_agreement(delivered)
    yield from no_gap(delivered, lambda item: item.position, first=1)
    yield from exactly_once(delivered, identity, acknowledged(asked))
    yield from linearizable(asked, key=lambda command: command.key, step=one_copy)


def acknowledged(operations: Iterable[Operation]) -> list[Hashable]:
    """The commands whose effects must not be lost."""
    return [
        (o.client, o.request) for o in operations if o.returned is not None and not isinstance(o.command, Get)
    ]


def identity(item: Committed) -> Hashable | None:
    """What must not be delivered twice: a command that took effect."""
    return (item.client, item.request) if item.fresh else None


def one_copy(state: Hashable, command: Put | Get | CompareAndSet) -> tuple[Hashable, Any]:
    """What a single copy of one key would do: written apart from the node's own code on purpose."""
    match command:
        case Get():
            return state, Answer(value=state if isinstance(state, str) else None)
        case Put(value=value):
            return value, Answer()
        case CompareAndSet(expected=expected, value=value):
            return (value, Answer()) if state == expected else (state, Answer(done=False))


def _bug(name: str | None) -> Bug | None:
    if name is None:
        return None
    try:
        return Bug(name)
    except ValueError:
        raise UsageError(f"no bug is called {name!r}", hint=f"choose one of: {', '.join(Bug)}") from None
