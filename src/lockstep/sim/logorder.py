"""The smallest protocol over the shared log: a node appends what it is asked, all deliver on read-back.

It keeps nothing on disk, since the log holds everything: so it is also the protocol whose disks may be
lost. An append whose outcome is unknown is repeated, and readers drop what they have seen.
"""

from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum
from random import Random
from typing import ClassVar

import msgspec
from msgspec import Struct

from lockstep.protocol.machine import (
    Append,
    ClientId,
    Deliver,
    Effects,
    LogRecord,
    Machine,
    Message,
    NodeId,
    Reply,
    SetTimer,
    Subscribe,
    Token,
)
from lockstep.sim.checkers.order import exactly_once, no_gap, prefix_agreement, same_order
from lockstep.sim.checkers.progress import eventual_answer, eventual_delivery
from lockstep.sim.faults import Permits
from lockstep.sim.history import History, Violation
from lockstep.sim.scenario import Scenario

TOPIC = "commands"
RETRY = 0.05


class Say(Struct, frozen=True, tag=True):
    client: str
    request: int
    text: str


class Said(Struct, frozen=True, tag=True):
    """A delivery: the how-manyeth it is, and what was said."""

    number: int
    what: Say


class Bug(StrEnum):
    KEEPS_REPETITIONS = "keeps-repetitions"
    """Readers do not drop what they have seen."""
    NO_RETRY = "no-retry"
    """An append that failed is forgotten, and the command is taken for done."""


class LogFollower(Machine):
    def __init__(self, *, bug: Bug | None = None) -> None:
        self._bug = bug
        self._seen: set[tuple[ClientId, int]] = set()
        self._delivered = 0
        self._waiting: dict[tuple[ClientId, int], Say] = {}

    def on_start(self, durable: Sequence[Message]) -> Effects:
        yield Subscribe(TOPIC, 0, 0)

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        if (client, request) in self._seen:
            yield Reply(client, request, True)
            return
        self._waiting[client, request] = command
        yield self._append(command)

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        if self._bug is Bug.NO_RETRY and isinstance(token, tuple):
            yield Reply(token[0], token[1], True)
        else:
            yield SetTimer("retry", RETRY)

    def on_timer(self, name: str) -> Effects:
        for command in self._waiting.values():
            yield self._append(command)

    def on_record(self, record: LogRecord) -> Effects:
        said = msgspec.json.decode(record.value or b"", type=Say)
        name = (said.client, said.request)
        if name in self._seen and self._bug is not Bug.KEEPS_REPETITIONS:
            return
        self._seen.add(name)
        self._delivered += 1
        yield Deliver(Said(self._delivered, said))
        if self._waiting.pop(name, None) is not None:
            yield Reply(said.client, said.request, True)

    def _append(self, command: Say) -> Append:
        return Append(TOPIC, 0, msgspec.json.encode(command), token=(command.client, command.request))


class LogOrder(Scenario):
    title: ClassVar[str] = "an order that the shared log makes"
    bugs: ClassVar[tuple[str, ...]] = tuple(bug.value for bug in Bug)
    permits = Permits(lost_disks=1_000)

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self.nodes = [f"n{number}" for number in range(1, rng.randint(2, 4) + 1)]
        self.client_count = rng.randint(1, 4)
        self._commands = rng.randint(5, 20)
        self._bug = Bug(bug) if bug else None

    def machine(self, node: NodeId) -> Machine:
        return LogFollower(bug=self._bug)

    def command(self, client: ClientId, request: int, rng: Random) -> Message | None:
        return Say(client, request, f"hello {request}") if request <= self._commands else None

    def settled(self, history: History) -> bool:
        lengths = {len(sequence.deliveries) for sequence in history.current()}
        return self.clients is not None and self.clients.finished() and len(lengths) == 1

    def check(self, history: History) -> Iterable[Violation]:
        answered = [(o.client, o.request) for o in history.operations if o.returned is not None]
        yield from same_order(history.sequences, _identity)
        yield from prefix_agreement(history.sequences)
        yield from no_gap(history.sequences, lambda item: item.number, first=1)
        yield from exactly_once(history.sequences, _identity, answered)
        yield from eventual_answer(history.operations)
        yield from eventual_delivery(history.current())


def _identity(item: Said) -> Hashable:
    return item.what.client, item.what.request
