"""What the nodes of the replicated log say, write down and are asked."""

from msgspec import Struct


class Put(Struct, frozen=True, tag=True):
    key: str
    value: str


class Get(Struct, frozen=True, tag=True):
    key: str


class CompareAndSet(Struct, frozen=True, tag=True):
    key: str
    expected: str | None
    value: str


Command = Put | Get | CompareAndSet


class Answer(Struct, frozen=True, tag=True):
    """The result of a command: the value read, or whether the write took place."""

    value: str | None = None
    done: bool = True


class NotLeader(Struct, frozen=True, tag=True):
    """Ask `leader` instead; "" when it is not known."""

    leader: str


class Entry(Struct, frozen=True, tag=True):
    """One place in the log. Without a command it is the mark that a leader sets at its epoch's start."""

    epoch: int
    client: str = ""
    request: int = 0
    command: Command | None = None


class Committed(Struct, frozen=True, tag=True):
    """A delivery: position in the log, and whether the command took effect here (false: a repetition)."""

    position: int
    client: str
    request: int
    command: Command | None
    fresh: bool


# Between nodes.


class Canvass(Struct, frozen=True, tag=True):
    epoch: int
    last_epoch: int
    last_position: int


class Vote(Struct, frozen=True, tag=True):
    epoch: int
    granted: bool


class Replicate(Struct, frozen=True, tag=True):
    """Entries that follow position `after`, whose entry must be of `after_epoch`."""

    epoch: int
    after: int
    after_epoch: int
    entries: tuple[Entry, ...]
    committed: int


class Stored(Struct, frozen=True, tag=True):
    """The sender's disk holds the leader's log up to `position`."""

    epoch: int
    position: int


class Mismatch(Struct, frozen=True, tag=True):
    """The sender's log does not fit; entries after `position` are worth trying."""

    epoch: int
    position: int


PeerMessage = Canvass | Vote | Replicate | Stored | Mismatch

# On disk.


class Promise(Struct, frozen=True, tag=True):
    """No epoch below `epoch` counts any more; in it, the vote went to `voted_for`."""

    epoch: int
    voted_for: str | None


class Written(Struct, frozen=True, tag=True):
    position: int
    entry: Entry


class Cut(Struct, frozen=True, tag=True):
    """Everything after position `after` is void."""

    after: int


DurableRecord = Promise | Written | Cut
