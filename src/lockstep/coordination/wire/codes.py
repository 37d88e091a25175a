"""ZooKeeper's numbers: operations, error codes, events, permissions, modes of creation.

They are fixed by the clients that connect to us unchanged, so they are written down once, here.
"""

from enum import IntEnum
from typing import Final


class Op(IntEnum):
    """What a request asks for (the `type` of its header)."""

    NOTIFICATION = 0
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    ERROR = -1


WRITES: Final = frozenset(
    (
        *(Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL),
        *(Op.DELETE, Op.SET_DATA, Op.SET_ACL, Op.CHECK, Op.MULTI, Op.SYNC, Op.CLOSE_SESSION),
    )
)
"""What goes to the leader. A sync does too: it becomes an entry of the history, and so a true barrier."""


class Code(IntEnum):
    """What a reply's header says about the outcome."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    UNKNOWN_SESSION = -12
    API_ERROR = -100
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_CALLBACK = -113
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    EPHEMERAL_ON_LOCAL_SESSION = -120
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123
    QUOTA_EXCEEDED = -125
    THROTTLED = -127


class Event(IntEnum):
    """What a watch tells its client."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Perm(IntEnum):
    """Plain numbers: they are combined on the way of every request, where flags would cost ten times more."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Mode(IntEnum):
    """The `flags` of a creation."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    TTL = 5
    TTL_SEQUENTIAL = 6


class WatcherType(IntEnum):
    """Which watches a removal means."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    RECURSIVE = 5


NOTIFICATION_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4
SET_WATCHES_XID: Final = -8

SYNC_CONNECTED: Final = 3
"""The client state inside every event that a server sends."""

CONTAINER_OWNER: Final = -(1 << 63)
"""`ephemeralOwner` of a container."""
TTL_OWNER_BASE: Final = -(1 << 56)
"""`ephemeralOwner` of a node with a time to live: this, with the milliseconds in the low 40 bits."""
MAX_TTL: Final = (1 << 40) - 1


def owner_ttl(owner: int) -> int:
    """The time to live (ms) that an `ephemeralOwner` encodes, or 0 if it encodes none."""
    return owner & MAX_TTL if TTL_OWNER_BASE <= owner < 0 else 0


def is_session(owner: int) -> bool:
    """Whether an `ephemeralOwner` names a session (and is not empty, a container or a time to live)."""
    return owner != 0 and owner != CONTAINER_OWNER and not TTL_OWNER_BASE <= owner < 0
