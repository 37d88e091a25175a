"""Transactions: what the ensemble agrees on, and the only thing that changes a tree.

A transaction says what happens, not what was asked for: versions, sequential names, times and errors are
already decided, so every server that applies the same sequence holds the same tree. Its zxid is given by
the broadcast protocol and travels beside it.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from lockstep.coordination.wire.records import Acl


class Created(Struct, frozen=True, array_like=True, tag=1):
    """`owner` is the session, container or time-to-live marker; `parent_cversion` the parent's new count."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    owner: int
    parent_cversion: int


class Deleted(Struct, frozen=True, array_like=True, tag=2):
    path: str


class DataSet(Struct, frozen=True, array_like=True, tag=3):
    path: str
    data: bytes | None
    version: int


class AclSet(Struct, frozen=True, array_like=True, tag=4):
    path: str
    acl: tuple[Acl, ...]
    version: int


class Checked(Struct, frozen=True, array_like=True, tag=5):
    """A version was compared and found equal: nothing changes."""

    path: str


class SessionOpened(Struct, frozen=True, array_like=True, tag=6):
    timeout: int
    password: bytes
    close_with_connection: bool = False


class SessionClosed(Struct, frozen=True, array_like=True, tag=7):
    """The session ends and takes its ephemeral nodes with it."""


class Refused(Struct, frozen=True, array_like=True, tag=8):
    """The request failed. It is in the history so that its answer keeps its place among the others."""

    code: int


class MultiDone(Struct, frozen=True, array_like=True, tag=9):
    ops: tuple[Created | Deleted | DataSet | Checked, ...]


class MultiRefused(Struct, frozen=True, array_like=True, tag=10):
    """One operation failed, so none happened: each one's code."""

    codes: tuple[int, ...]


class Synced(Struct, frozen=True, array_like=True, tag=11):
    """A barrier: whoever asked for it has now seen everything before it."""


Operation: TypeAlias = (
    Created
    | Deleted
    | DataSet
    | AclSet
    | Checked
    | SessionOpened
    | SessionClosed
    | Refused
    | MultiDone
    | MultiRefused
    | Synced
)


class Transaction(Struct, frozen=True, array_like=True):
    """One entry of the history. (`origin`, `sequence`) name the request: the server that a client sent it
    to, and that server's count of it; `time` is the leader's clock in milliseconds."""

    origin: int
    sequence: int
    session: int
    time: int
    operation: Operation


class Submission(Struct, frozen=True, array_like=True):
    """A request on its way from the server that got it to the leader, which turns it into a transaction."""

    sequence: int
    session: int
    op: int
    body: bytes
    identities: tuple[tuple[str, str], ...] = ()


_COUNT_BITS = 40


def first_sequence(incarnation: int) -> int:
    """Where a server starts to count its requests: each of its lives has numbers of its own."""
    return (incarnation % (1 << 22) + 1) << _COUNT_BITS


def is_repeat(sequence: int, last: int) -> bool:
    """Whether a request of a server came before, `last` being the last one known of that server.

    Only numbers of one life of the server can be compared. Nothing of an older life can arrive any more."""
    return sequence >> _COUNT_BITS == last >> _COUNT_BITS and sequence <= last


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Transaction)


def encode(transaction: Transaction) -> bytes:
    return _encoder.encode(transaction)


def decode(payload: bytes) -> Transaction:
    return _decoder.decode(payload)
