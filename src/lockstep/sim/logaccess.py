"""How simulated nodes reach the shared log: appends take time and may fail, subscriptions leave no gap.

An append whose node crashes may still take place, as with a real producer. One that meets an outage fails,
and has taken place or not. A subscription that starts past the log's end ends the node, as the real host
does.
"""

from typing import TYPE_CHECKING, Any

from lockstep.log.errors import OffsetOutOfRange
from lockstep.protocol.machine import Append, Halt, NodeId, Subscribe
from lockstep.sim.node import Node
from lockstep.sim.sharedlog import SharedLog

if TYPE_CHECKING:
    from lockstep.sim.world import World

DONE_DESPITE_FAILURE = 0.3
"""Share of failed appends that took place: only their answer was lost."""


class LogAccess:
    """Carries out `Append` and `Subscribe` of all nodes of a world."""

    def __init__(self, world: "World", log: SharedLog) -> None:
        self._world = world
        self._log = log

    def add(self, topic: str, partition: int, value: bytes | None, **rest: Any) -> int:
        """Put a record into the log now, and let its followers know."""
        offset = self._log.append(topic, partition, value, timestamp=self._world.now // 1000, **rest)
        for node in self._world.nodes.values():
            if node.up and (topic, partition) in node.subscriptions:
                self._fetch_later(node, topic, partition)
        return offset

    def set_available(self, available: bool) -> None:
        self._log.available = available
        self._world.say("log", "up" if available else "DOWN")
        if available:
            for node in self._world.nodes.values():
                for topic, partition in list(node.subscriptions):
                    self._fetch_later(node, topic, partition)

    def append(self, node: Node, effect: Append) -> None:
        world = self._world
        world.say(node.id, "append", f"{effect.topic}/{effect.partition}", effect.value)
        # A producer's appends reach the log in the order in which they were made.
        node.appends = max(node.appends, world.now + world.network.delay())
        world.at(node.appends, self._arrive, node.id, node.incarnation, effect)

    def subscribe(self, node: Node, effect: Subscribe) -> None:
        node.subscriptions[effect.topic, effect.partition] = effect.offset
        self._fetch_later(node, effect.topic, effect.partition)

    def _arrive(self, name: NodeId, incarnation: int, effect: Append) -> None:
        world = self._world
        node = world.nodes[name]
        if self._log.available:
            offset = self._add(effect)
            world.after(world.network.delay(), self._appended, node, incarnation, effect.token, offset)
            return
        if world.rng.random() < DONE_DESPITE_FAILURE:
            self._add(effect)
        world.after(world.network.delay(), self._failed, node, incarnation, effect.token)

    def _add(self, effect: Append) -> int:
        return self.add(effect.topic, effect.partition, effect.value, key=effect.key, headers=effect.headers)

    def _appended(self, node: Node, incarnation: int, token: Any, offset: int) -> None:
        if node.up and node.incarnation == incarnation:
            self._world.give(node, node.machine.on_appended, token, offset)

    def _failed(self, node: Node, incarnation: int, token: Any) -> None:
        if node.up and node.incarnation == incarnation:
            self._world.say(node.id, "append", "failed")
            self._world.give(node, node.machine.on_append_failed, token, "the log is unavailable")

    def _fetch_later(self, node: Node, topic: str, partition: int) -> None:
        world = self._world
        world.after(world.network.delay(), self._fetch, node, node.incarnation, topic, partition)

    def _fetch(self, node: Node, incarnation: int, topic: str, partition: int) -> None:
        if not node.up or node.incarnation != incarnation or not self._log.available:
            return
        try:
            records = self._log.read(topic, partition, node.subscriptions[topic, partition])
        except OffsetOutOfRange as error:
            self._world.halt(node, Halt(error.message))
            return
        for record in records:
            node.subscriptions[topic, partition] = record.offset + 1
            self._world.say(node.id, "record", f"{topic}/{partition}@{record.offset}", record.value)
            self._world.give(node, node.machine.on_record, record)
            if not node.up or self._world.stopped:
                return
            if node.subscriptions[topic, partition] != record.offset + 1:
                return  # the machine has just moved its subscription
