"""What a client can be told, as exceptions: ZooKeeper's codes, each with what to do about it."""

from lockstep.coordination.wire.codes import Code
from lockstep.errors import LockstepError


class CoordinationError(LockstepError):
    """A request failed with `code`."""

    code: Code = Code.SYSTEM_ERROR


class ConnectionLoss(CoordinationError):
    """The connection broke. A write that was under way may or may not have happened."""

    code = Code.CONNECTION_LOSS


class ClientClosed(CoordinationError):
    """`stop` was called: nothing more can be asked of this client."""

    code = Code.SESSION_EXPIRED


class SessionExpired(CoordinationError):
    code = Code.SESSION_EXPIRED


class NoNode(CoordinationError):
    code = Code.NO_NODE


class NodeExists(CoordinationError):
    code = Code.NODE_EXISTS


class NotEmpty(CoordinationError):
    code = Code.NOT_EMPTY


class BadVersion(CoordinationError):
    code = Code.BAD_VERSION


class NoAuth(CoordinationError):
    code = Code.NO_AUTH


class BadArguments(CoordinationError):
    code = Code.BAD_ARGUMENTS


_CLASSES: dict[int, tuple[type[CoordinationError], str, str]] = {
    Code.NO_NODE: (NoNode, "there is no such node", "create it (and what is above it) first"),
    Code.NODE_EXISTS: (NodeExists, "the node exists already", "use `set`, or another name"),
    Code.NOT_EMPTY: (NotEmpty, "the node has children", "delete them first"),
    Code.BAD_VERSION: (BadVersion, "the node has another version", "read it again and decide anew"),
    Code.NO_AUTH: (NoAuth, "not allowed", "give the credentials that the node's access list names"),
    Code.BAD_ARGUMENTS: (BadArguments, "the request makes no sense", "check path and flags"),
    Code.SESSION_EXPIRED: (SessionExpired, "the session has expired", "start a new client"),
    Code.CONNECTION_LOSS: (ConnectionLoss, "the connection was lost", "find out what happened, then retry"),
}


def error_for(code: int, what: str) -> CoordinationError:
    """The exception for a reply's code; `what` names the request."""
    kind, text, hint = _CLASSES.get(code, (CoordinationError, "", ""))
    if not text:
        name = Code(code).name if code in Code._value2member_map_ else f"code {code}"
        text = name.lower().replace("_", " ")
    error = kind(f"{what}: {text}", hint=hint)
    if kind is CoordinationError and code in Code._value2member_map_:
        error.code = Code(code)
    return error
