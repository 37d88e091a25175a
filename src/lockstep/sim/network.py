"""The network between nodes: delay, loss, duplication, reordering, broken connections, partitions.

Two kinds of link, chosen by the seed within what the scenario permits:

- **ordered** (the contract of a machine, like TCP): messages of a pair arrive in order and once. A loss
  breaks the connection: everything in flight is gone, both ends are told, and it reconnects later.
  A partition holds messages back (the peer's kernel would retransmit) until it heals or breaks.
- **loose** (datagrams): each message may be lost, doubled or overtaken on its own; a partition drops.

The network decides when something arrives; the world, which owns the clock, makes it arrive.
"""

from collections.abc import Iterable
from random import Random

from lockstep.protocol.machine import NodeId
from lockstep.sim.faults import FaultMix

Pair = tuple[NodeId, NodeId]


class Link:
    """One direction between two nodes."""

    __slots__ = ("arrival", "blocked", "connection", "held", "ready", "up")

    def __init__(self) -> None:
        self.up = False
        self.connection = 0
        """Counts connections; a message of an earlier one never arrives."""
        self.arrival = 0
        """When the newest message arrives: none may overtake it on an ordered link."""
        self.blocked = 0
        """How many partitions lie on this direction now."""
        self.ready = 0
        """When it may connect again."""
        self.held: list[object] = []


class Network:
    """Link states and the random choices about single messages."""

    def __init__(self, rng: Random, faults: FaultMix, nodes: Iterable[NodeId]) -> None:
        self._rng = rng
        self.faults = faults
        names = list(nodes)
        self.links: dict[Pair, Link] = {(a, b): Link() for a in names for b in names if a != b}

    def delay(self) -> int:
        faults, random = self.faults, self._rng.random
        delay = faults.delay + int(faults.jitter * random())
        if faults.stragglers and random() < faults.stragglers:
            delay += int(50 * faults.delay * random())
        return delay

    def lost(self) -> bool:
        return self.faults.loss > 0 and self._rng.random() < self.faults.loss

    def doubled(self) -> bool:
        return self.faults.duplication > 0 and self._rng.random() < self.faults.duplication

    def calm(self) -> None:
        """No more faults: plain delays remain."""
        was = self.faults
        self.faults = FaultMix(loose=was.loose, delay=was.delay, jitter=was.jitter)
