"""Small machines for the tests of the host."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from lockstep.protocol.machine import (
    ClientId,
    Compact,
    Deliver,
    Effects,
    Machine,
    Message,
    NodeId,
    Persist,
    Reply,
    Send,
    Token,
)


class Say(Struct, frozen=True, tag="say"):
    text: str
    body: bytes = b""


class Number(Struct, frozen=True, tag="number"):
    number: int


class Add(Struct, frozen=True, tag="add"):
    number: int


class Recorder(Machine):
    """Keeps what it was given; `effects` decides what it does about it."""

    PROTOCOL = "recorder"
    MESSAGES = Say | Number
    RECORDS = Number
    COMMANDS = Say | Add

    def __init__(self, effects: Callable[..., Effects] = lambda *_: ()) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._effects = effects

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [given[1:] for given in self.seen if given[0] == kind]

    def _note(self, *given: Any) -> Effects:
        self.seen.append(given)
        return self._effects(*given)

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return self._note("start", *durable)

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        return self._note("message", sender, message)

    def on_timer(self, name: str) -> Effects:
        return self._note("timer", name)

    def on_persisted(self, token: Token) -> Effects:
        return self._note("persisted", token)

    def on_record(self, record: Any) -> Effects:
        return self._note("record", record)

    def on_appended(self, token: Token, offset: int) -> Effects:
        return self._note("appended", token, offset)

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        return self._note("append_failed", token, reason)

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        return self._note("command", client, request, command)

    def on_peer(self, peer: NodeId, up: bool) -> Effects:
        return self._note("peer", peer, up)


class Sum(Machine):
    """A durable sum: answers a command once it is on the disk, and again when it is asked again."""

    PROTOCOL = "sum"
    RECORDS = Add
    COMMANDS = Add
    RESULTS = int

    def __init__(self) -> None:
        self.total = 0
        self.given = 0

    def on_start(self, durable: Sequence[Message]) -> Effects:
        self.total = sum(record.number for record in durable)
        return ()

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        self.given += 1
        self.total += command.number
        return (Persist(command, (client, request, self.total)),)

    def on_persisted(self, token: Token) -> Effects:
        client, request, total = token  # type: ignore[misc]
        return (Reply(client, request, total),)


class Counting(Machine):
    """Persists 0, 1, 2, ... as fast as it can and delivers each number once it is confirmed.

    `compact_every` numbers it replaces its history by the last one. With `early` it has a planted bug: it
    delivers beside the `Persist`, before the number is safe.
    """

    PROTOCOL = "counting"
    RECORDS = Number

    def __init__(self, *, ahead: int = 64, compact_every: int = 0, early: bool = False) -> None:
        self._ahead = ahead
        self._compact_every = compact_every
        self._early = early
        self._next = 0

    def on_start(self, durable: Sequence[Message]) -> Effects:
        self._next = durable[-1].number + 1 if durable else 0
        for _ in range(self._ahead):
            yield from self._count()

    def on_persisted(self, token: Token) -> Effects:
        if not self._early:
            yield Deliver(token)
        yield from self._count()

    def _count(self) -> Effects:
        number, self._next = self._next, self._next + 1
        if self._compact_every and number % self._compact_every == 0:
            yield Compact((Number(number),), number)
        else:
            yield Persist(Number(number), number)
        if self._early:
            yield Deliver(number)


class Shouter(Machine):
    """Sends whatever it is commanded to say to the peer `to`."""

    PROTOCOL = "recorder"
    MESSAGES = Say | Number
    COMMANDS = Say | Add

    def __init__(self, to: NodeId) -> None:
        self._to = to

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        return (Send(self._to, command), Reply(client, request, None))
