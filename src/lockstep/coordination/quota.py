"""Quotas: how many nodes, and how many bytes, lie below a path.

ZooKeeper's layout: the limits of `/a` are the data of `/zookeeper/quota/a/zookeeper_limits`, and the server
keeps the current figures in `/zookeeper/quota/a/zookeeper_stats`. A node counts for the nearest path above
it that has limits. As in ZooKeeper, only hard limits are enforced, and only where the server is told to.
"""

from typing import TYPE_CHECKING

from lockstep.coordination import paths

if TYPE_CHECKING:
    from lockstep.coordination.tree import Node, Tree


def guarded(limits_path: str) -> str:
    """The path whose limits are kept in `limits_path`."""
    return paths.parent(limits_path)[len(paths.QUOTA) :] or paths.ROOT


def guard_of(tree: "Tree", path: str) -> str | None:
    """The nearest path at or above `path` that has limits."""
    if path.startswith(paths.RESERVED):
        return None
    return next((above for above in paths.ancestors(path) if above in tree.quotas), None)


def parse(data: bytes | None) -> dict[str, int]:
    """`count=3,bytes=-1` and ZooKeeper's longer forms; what is not understood is left out."""
    figures: dict[str, int] = {}
    for part in (data or b"").decode(errors="replace").replace(";", ",").split(","):
        key, _, value = part.partition("=")
        try:
            figures[key.strip()] = int(value.strip().rstrip("="))
        except ValueError:
            continue
    return figures


def exceeded(tree: "Tree", path: str, nodes: int, size: int) -> bool:
    """Whether adding `nodes` and `size` bytes at `path` would pass a hard limit."""
    guard = guard_of(tree, path) if tree.quotas else None
    if guard is None:
        return False
    folder = paths.QUOTA + (guard if guard != paths.ROOT else "")
    limits_node = tree.nodes.get(paths.child(folder, paths.LIMITS_NAME))
    stats_node = tree.nodes.get(paths.child(folder, paths.STATS_NAME))
    if limits_node is None or stats_node is None:
        return False
    limits, stats = parse(limits_node.data), parse(stats_node.data)
    most_nodes, most_bytes = limits.get("countHardLimit", -1), limits.get("byteHardLimit", -1)
    too_many = nodes > 0 and most_nodes > -1 and stats.get("count", 0) + nodes > most_nodes
    too_large = size > 0 and most_bytes > -1 and stats.get("bytes", 0) + size > most_bytes
    return too_many or too_large


def created(tree: "Tree", path: str, zxid: int, time: int) -> None:
    if path.startswith(paths.QUOTA) and paths.name(path) == paths.STATS_NAME:
        guard = guarded(path)
        if guard in tree.nodes:
            below = list(tree.descendants(guard))
            size = sum(len(tree.nodes[p].data or b"") for p in below)
            tree.nodes[path].data = _format(len(below), size)
        return
    _add(tree, path, 1, len(tree.nodes[path].data or b""))


def deleted(tree: "Tree", path: str, node: "Node") -> None:
    if path.startswith(paths.QUOTA) and paths.name(path) == paths.LIMITS_NAME:
        tree.quotas.discard(guarded(path))
        return
    _add(tree, path, -1, -len(node.data or b""))


def resized(tree: "Tree", path: str, difference: int) -> None:
    _add(tree, path, 0, difference)


def _add(tree: "Tree", path: str, nodes: int, size: int) -> None:
    guard = guard_of(tree, path)
    if guard is None:
        return
    folder = paths.QUOTA + (guard if guard != paths.ROOT else "")
    stats_node = tree.nodes.get(paths.child(folder, paths.STATS_NAME))
    if stats_node is not None:
        stats = parse(stats_node.data)
        stats_node.data = _format(stats.get("count", 0) + nodes, stats.get("bytes", 0) + size)


def _format(count: int, size: int) -> bytes:
    return f"count={count},bytes={size}".encode()
