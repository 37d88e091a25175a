"""Puts a seed's faults upon a world, until the calm.

Each kind of fault comes at random intervals around the mean that the seed's mix names. At the calm
everything heals: partitions end, nodes and the log come back, disks and nodes are quick again; only the
clocks keep their different speeds, within what the scenario permits.
"""

from collections.abc import Callable

from lockstep.protocol.machine import NodeId
from lockstep.sim.faults import FaultMix, Permits
from lockstep.sim.world import World


class Nemesis:
    """The adversary of one run."""

    def __init__(self, world: World, faults: FaultMix, permits: Permits, calm_at: int) -> None:
        self._world = world
        self._faults = faults
        self._permits = permits
        self._calm_at = calm_at
        self._disks_to_lose = permits.lost_disks
        self._names = list(world.nodes)
        self._calm = False

    def begin(self) -> None:
        world, faults, rng = self._world, self._faults, self._world.rng
        for node in world.nodes.values():
            if faults.skew > 1.0:
                node.clock = faults.skew ** (rng.random() - 0.5)
        if faults.slow_disk:
            world.nodes[rng.choice(self._names)].disk.latency = faults.slow_disk
        if faults.slow_node:
            world.nodes[rng.choice(self._names)].cost = faults.slow_node
        for name in self._names:
            world.at(rng.randint(0, 20_000), world.start, name)
        self._again(faults.partition_every, self._partition)
        self._again(faults.crash_every, self._crash)
        if faults.ambush:
            world.on_flush = self._ambush
        self._again(faults.pause_every, self._pause)
        self._again(faults.log_down_every, self._log_down)
        world.at(self._calm_at, self._end)

    def _again(self, every: int, strike: Callable[[], None]) -> None:
        if every:
            self._world.after(1 + int(self._world.rng.expovariate(1 / every)), self._strike, every, strike)

    def _strike(self, every: int, strike: Callable[[], None]) -> None:
        if not self._calm:
            strike()
            self._again(every, strike)

    def _partition(self) -> None:
        """Cut a random group of nodes off from the rest, or single pairs, in one direction or in both."""
        if len(self._names) < 2:
            return
        rng, faults = self._world.rng, self._faults
        group = sorted(rng.sample(self._names, rng.randint(1, len(self._names) - 1)))
        rest = [name for name in self._names if name not in group]
        pairs = [(one, other) for one in group for other in rest]
        if len(self._names) > 2 and rng.random() < 0.3:  # some still reach both of two that are cut
            pairs = rng.sample(pairs, rng.randint(1, len(pairs)))
        if rng.random() >= faults.one_way:
            pairs += [(other, one) for one, other in pairs]
        elif rng.random() < 0.5:
            pairs = [(other, one) for one, other in pairs]
        flaps = rng.randint(2, 6) if rng.random() < faults.flapping else 1
        length = 1 + int(rng.expovariate(1 / faults.partition_for)) // flaps
        self._cut(pairs, length, flaps)

    def _cut(self, pairs: list[tuple[NodeId, NodeId]], length: int, flaps: int) -> None:
        if self._calm:
            return
        world = self._world
        world.say("net", "CUT", " ".join(f"{one}>{other}" for one, other in pairs))
        for one, other in pairs:
            world.block(one, other)
        if world.rng.random() < 0.5:  # the kernels give up: the connections break, too
            for one, other in pairs:
                if world.network.links[one, other].up:
                    world.disconnect(one, other)
        world.after(length, self._heal, pairs, length, flaps)

    def _heal(self, pairs: list[tuple[NodeId, NodeId]], length: int, flaps: int) -> None:
        world = self._world
        world.say("net", "heal", " ".join(f"{one}>{other}" for one, other in pairs))
        for one, other in pairs:
            world.unblock(one, other)
        if flaps > 1:
            world.after(length, self._cut, pairs, length, flaps - 1)

    def _crash(self) -> None:
        world, rng, faults = self._world, self._world.rng, self._faults
        running = [name for name in self._names if world.nodes[name].up]
        most = self._permits.max_down
        down = len(self._names) - len(running)
        room = len(running) if most is None else min(len(running), most - down)
        if room <= 0:
            return
        count = rng.randint(1, room) if rng.random() < faults.power_cut else 1
        for name in rng.sample(running, count):
            self._crash_one(name)

    def _crash_one(self, name: NodeId) -> None:
        world, rng, faults = self._world, self._world.rng, self._faults
        lose = self._disks_to_lose > 0 and rng.random() < faults.disk_loss
        if lose:
            self._disks_to_lose -= 1
        world.crash(name, lose_disk=lose)
        world.after(1 + int(rng.expovariate(1 / faults.down_for)), world.start, name)

    def _ambush(self, name: NodeId) -> None:
        """A node has just written something down: the moments after are when a crash hurts most."""
        rng = self._world.rng
        if not self._calm and rng.random() < self._faults.ambush:
            self._world.after(rng.randint(1, 3_000), self._spring, name)

    def _spring(self, name: NodeId) -> None:
        down = sum(not node.up for node in self._world.nodes.values())
        most = self._permits.max_down
        if not self._calm and self._world.nodes[name].up and (most is None or down < most):
            self._crash_one(name)

    def _pause(self) -> None:
        rng = self._world.rng
        name = rng.choice(self._names)
        if self._world.nodes[name].up:
            duration = 1 + int(rng.expovariate(1 / self._faults.pause_for))
            self._world.pause(name, min(duration, self._calm_at - self._world.now))  # a pause is a fault too

    def _log_down(self) -> None:
        world = self._world
        if world.log.available:
            world.set_log_available(False)
            world.after(
                1 + int(world.rng.expovariate(1 / self._faults.log_down_for)), world.set_log_available, True
            )

    def _end(self) -> None:
        world = self._world
        self._calm = True
        world.say("net", "CALM", "no more faults")
        world.network.calm()
        for one, other in list(world.network.links):
            while world.network.links[one, other].blocked:
                world.unblock(one, other)
        if not world.log.available:
            world.set_log_available(True)
        for node in world.nodes.values():
            node.cost = 0
            node.disk.latency = self._faults.disk_latency
            world.resume(node.id)
            world.start(node.id)
