"""The states of a client, each with what the *user* of the client must do in it."""

from enum import Enum


class State(Enum):
    CONNECTING = "connecting"
    """No session yet. Requests wait. **Do nothing**: wait for CONNECTED, or give up."""

    CONNECTED = "connected"
    """The session is live. What you hold (locks, leadership, membership) is yours."""

    SUSPENDED = "suspended"
    """The connection is lost and the client looks for another server. The session may still live, or it may
    have expired by now without this client being able to know. **Stop acting** on what you hold: a lock may
    be somebody else's already. Where you must go on, send your fencing token with every action, so that
    the other side can refuse you. Requests that were under way raised `ConnectionLoss`: find out whether
    they happened before you repeat them. New requests wait."""

    EXPIRED = "expired"
    """The ensemble ended the session: your ephemeral nodes are gone, and so is all that you held. **Throw away**
    this client and everything that rests on it, and start a new one."""

    CLOSED = "closed"
    """You called `stop`. Nothing more happens."""
