"""Paths of znodes: what is valid, what is whose parent, and which names the server keeps for itself."""

import re
from typing import Final

ROOT: Final = "/"
RESERVED: Final = "/zookeeper"
CONFIG: Final = "/zookeeper/config"
QUOTA: Final = "/zookeeper/quota"
LIMITS_NAME: Final = "zookeeper_limits"
STATS_NAME: Final = "zookeeper_stats"

_VALID = re.compile(r"/|(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


def is_valid(path: str) -> bool:
    """The rule of ZooKeeper's own clients: absolute, no empty or dot names, no control characters."""
    return _VALID.fullmatch(path) is not None


def parent(path: str) -> str:
    """The parent of a valid path other than the root."""
    return path[: path.rindex("/")] or ROOT


def name(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def child(path: str, name: str) -> str:
    return f"/{name}" if path == ROOT else f"{path}/{name}"


def ancestors(path: str) -> list[str]:
    """The path itself, its parent, and so on up to the root."""
    found = [path]
    while path != ROOT:
        path = parent(path)
        found.append(path)
    return found
