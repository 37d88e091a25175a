"""The contract of a protocol machine: inputs come in as method calls, outputs go out as effects.

A machine holds protocol state and nothing else: no socket, no disk, no clock, no thread, no randomness.
Each `on_*` method takes one input, changes the machine's state and returns the effects that its host must
carry out, in the order of the list. Two hosts run the same classes: `lockstep.sim` (virtual time, one seed
decides everything) and `lockstep.protocol.host` (asyncio, TCP, disk, Kafka).

What a host promises to every machine:

1. Inputs arrive one at a time; effects of one input are started before the next input is given.
2. `Persist` and `Compact` are asynchronous. The host confirms each with `on_persisted(token)`, in the order
   in which they were asked for, once the bytes would survive a power cut. A machine that must not speak
   before its state is safe sends from `on_persisted`, never beside the `Persist`.
3. `Send` is best effort: a message may be lost when a connection breaks; between two breaks, messages of
   one pair of nodes arrive in order and once (the simulator may be told to break even this).
   A node may send to itself: the message comes back as a later input and is never lost.
4. A set timer fires once. Setting it again under the same name moves it; cancelling an unset one is fine.
5. After a crash the machine is built anew and gets `on_start` with the durable records that survived:
   a prefix-closed history of what was persisted, including everything that was confirmed.
6. `on_peer` tells when the connection to a peer is up and when it is lost. It is a hint, not a promise.
7. A command may arrive more than once under the same (client, request): a client that lost its connection
   sends again. A machine whose commands are not idempotent remembers what it has answered.

A machine class also declares what it says on the wire, so that the real host decodes strictly:

    class Counter(Machine):
        PROTOCOL = "counter"
        MESSAGES = Add | Added        # tagged frozen Structs that nodes send to each other
        RECORDS = Add                 # what it persists
        COMMANDS = Increment | Read   # what clients ask
        RESULTS = int                 # what it replies
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

NodeId: TypeAlias = str
ClientId: TypeAlias = str
Token: TypeAlias = Hashable
Message: TypeAlias = Any
"""A frozen `msgspec.Struct`, tagged, so that every host can frame, store and print it."""


class LogRecord(Struct, frozen=True):
    """One record that was read from a topic's partition of the shared log."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Send(Struct, frozen=True):
    """Send `message` to the peer `to`."""

    to: NodeId
    message: Message


class Persist(Struct, frozen=True):
    """Append `record` to this node's durable history; confirmed by `on_persisted(token)`."""

    record: Message
    token: Token = None


class Compact(Struct, frozen=True):
    """Replace this node's whole durable history by `records`, atomically; confirmed like `Persist`."""

    records: tuple[Message, ...]
    token: Token = None


class SetTimer(Struct, frozen=True):
    """Call `on_timer(name)` after `after` seconds of this node's clock."""

    name: str
    after: float


class CancelTimer(Struct, frozen=True):
    name: str


class Append(Struct, frozen=True):
    """Append to the shared log; answered by `on_appended(token, offset)` or `on_append_failed`."""

    topic: str
    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    token: Token = None


class Subscribe(Struct, frozen=True):
    """Feed the partition's records from `offset` on to `on_record`, in order and without a gap."""

    topic: str
    partition: int
    offset: int = 0


class Deliver(Struct, frozen=True):
    """Hand `item` to the application above this machine: the protocol's output."""

    item: Any


class Reply(Struct, frozen=True):
    """Answer a client's command."""

    client: ClientId
    request: int
    result: Any


class Note(Struct, frozen=True):
    """A line for the human reader of a trace. It has no effect on anything."""

    text: str


class Halt(Struct, frozen=True):
    """The machine doubts itself: end this node at once and restart it from its durable state."""

    reason: str


Effect: TypeAlias = (
    Send | Persist | Compact | SetTimer | CancelTimer | Append | Subscribe | Deliver | Reply | Note | Halt
)
Effects: TypeAlias = Iterable[Effect]


class Machine:
    """A protocol machine. Override the inputs that the protocol has; the others do nothing."""

    PROTOCOL: ClassVar[str] = ""
    """The name that two nodes must agree on when they connect; the class's name if left empty."""
    VERSION: ClassVar[int] = 1
    """Raise it when old and new nodes would misunderstand each other: they then refuse to connect."""
    MESSAGES: ClassVar[Any] = None
    RECORDS: ClassVar[Any] = None
    COMMANDS: ClassVar[Any] = None
    RESULTS: ClassVar[Any] = Any
    """The types of what nodes send, persist, are asked and reply: one type or a union of tagged Structs.
    None: the protocol has none of that kind. Only the real host needs them."""

    def on_start(self, durable: Sequence[Message]) -> Effects:
        """The node starts, fresh (`durable` is empty) or after a crash."""
        return ()

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        return ()

    def on_timer(self, name: str) -> Effects:
        return ()

    def on_persisted(self, token: Token) -> Effects:
        return ()

    def on_record(self, record: LogRecord) -> Effects:
        return ()

    def on_appended(self, token: Token, offset: int) -> Effects:
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """The append may or may not have taken place: the machine must cope with both."""
        return ()

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        """A client asks for something; answer now or later with `Reply`."""
        return ()

    def on_peer(self, peer: NodeId, up: bool) -> Effects:
        """The connection to `peer` came up or was lost."""
        return ()
