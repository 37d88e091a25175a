"""One node of a simulated world: a machine that comes and goes, and a disk that stays."""

from collections.abc import Callable
from typing import Any

from lockstep.protocol.machine import Machine, NodeId
from lockstep.sim.disk import Disk


class Node:
    """One node: a machine that comes and goes, and a disk that stays."""

    __slots__ = (
        "appends",
        "backlog",
        "busy_until",
        "clock",
        "cost",
        "disk",
        "id",
        "incarnation",
        "machine",
        "subscriptions",
        "timers",
        "up",
    )

    def __init__(self, node: NodeId, disk: Disk) -> None:
        self.id = node
        self.disk = disk
        self.machine: Machine = Machine()
        self.up = False
        self.incarnation = 0
        self.timers: dict[str, int] = {}
        self.subscriptions: dict[tuple[str, int], int] = {}
        self.appends = 0
        self.busy_until = 0
        self.backlog: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        """Events that wait for a paused or slow node."""
        self.cost = 0
        self.clock = 1.0
