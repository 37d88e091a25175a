"""The world of one run: a virtual clock, the nodes, and the carrying out of their effects.

One heap of events, ordered by virtual time and then by the order of their making, and one random
generator: with the same seed every run is the same, event for event. Nothing here reads a wall clock or
depends on the order of a hash.

The world is a host in the sense of `lockstep.protocol.machine`: it keeps the promises listed there.
Faults are put upon it from outside, by `lockstep.sim.nemesis`.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from lockstep.protocol.machine import (
    Append,
    CancelTimer,
    ClientId,
    Compact,
    Deliver,
    Effects,
    Halt,
    Machine,
    Message,
    NodeId,
    Note,
    Persist,
    Reply,
    Send,
    SetTimer,
    Subscribe,
)
from lockstep.sim.disk import Disk
from lockstep.sim.faults import FaultMix
from lockstep.sim.history import Delivered, History, Violation
from lockstep.sim.logaccess import LogAccess
from lockstep.sim.network import Link, Network
from lockstep.sim.node import Node
from lockstep.sim.sharedlog import SharedLog
from lockstep.sim.trace import Trace

RECONNECT = 20_000
"""A broken connection is noticed within this time, and comes back after it, within twice of it."""


class World:
    """Virtual time, nodes, network, disks and log of one run."""

    def __init__(
        self,
        rng: Random,
        faults: FaultMix,
        nodes: list[NodeId],
        build: Callable[[NodeId], Machine],
        *,
        trace: Trace | None = None,
    ) -> None:
        self.rng = rng
        self.now = 0
        self.trace = trace
        self.history = History(nodes)
        self.network = Network(rng, faults, nodes)
        self.log = SharedLog()
        self.inputs = 0
        """Inputs given to machines so far: the simulated events."""
        self.stopped = False
        self.on_reply: Callable[[ClientId, int, Any], None] = lambda client, request, result: None
        self.on_flush: Callable[[NodeId], None] | None = None
        """Told whenever a node's writes became safe and the machine has drawn its conclusions."""
        self._build = build
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0
        self._loose = faults.loose
        self.nodes: dict[NodeId, Node] = {name: Node(name, Disk(faults.disk_latency)) for name in nodes}
        self._log_access = LogAccess(self, self.log)
        self._carry: dict[type, Callable[[Node, Any], None]] = {
            Send: self._send,
            Persist: self._persist,
            Compact: self._persist,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Append: self._log_access.append,
            Subscribe: self._log_access.subscribe,
            Deliver: self._deliver,
            Reply: self._reply,
            Note: self._note,
            Halt: self.halt,
        }

    # What a scenario and the nemesis may call.

    def at(self, when: int, call: Callable[..., None], *args: Any) -> None:
        """Call at a virtual time."""
        self._made += 1
        heappush(self._heap, (when, self._made, call, args))

    def after(self, delay: int, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def run(self, until: int, *, max_events: int) -> None:
        """Let virtual time pass until `until`, or until someone calls `stop`."""
        heap = self._heap
        while heap and not self.stopped:
            if self.inputs > max_events:
                text = f"more than {max_events} events by {self.now / 1_000_000:.3f} s: the nodes chatter"
                self.history.violations.append(Violation("work is bounded", text, self.now))
                return
            when, made, call, args = heappop(heap)
            if when > until:
                heappush(heap, (when, made, call, args))
                break
            self.now = when
            if args and type(args[0]) is Node and args[0].busy_until > when:
                self._put_off(args[0], (made, call, args))
                continue
            call(*args)
        if not self.stopped:
            self.now = until

    def stop(self) -> None:
        self.stopped = True

    def start(self, name: NodeId) -> None:
        """Start a node, fresh or from what its disk kept."""
        node = self.nodes[name]
        if node.up:
            return
        node.up = True
        node.incarnation += 1
        self.resume(name)
        node.timers, node.subscriptions = {}, {}
        node.machine = self._build(name)
        self.history.started(name)
        durable = list(node.disk.safe)
        self.say(name, "start", f"{len(durable)} durable records")
        self.give(node, node.machine.on_start, durable)
        for peer in self.nodes.values():
            if peer is not node and peer.up:
                self.after(self.rng.randint(100, RECONNECT), self._connect, name, peer.id)

    def crash(self, name: NodeId, *, lose_disk: bool = False) -> None:
        node = self.nodes[name]
        if not node.up:
            return
        node.up = False
        survived, unsafe = node.disk.crash(self.rng, lose=lose_disk)
        fate = "disk lost" if lose_disk else f"{survived} of {unsafe} unconfirmed writes survive"
        self.say(name, "CRASH", fate)
        for peer in self.nodes:
            if peer != name:
                self.disconnect(name, peer)

    def disconnect(self, one: NodeId, other: NodeId) -> None:
        """Break the connection of a pair: what is in flight is lost, and both ends learn of it."""
        there, back = self.network.links[one, other], self.network.links[other, one]
        there.connection += 1
        back.connection += 1
        there.held, back.held = [], []
        if there.up:
            there.up = back.up = False
            there.ready = back.ready = self.now + RECONNECT
            self.say("net", "break", f"{one} x {other}")
            for end, peer in ((one, other), (other, one)):
                node = self.nodes[end]
                noticed = self.rng.randint(100, RECONNECT)  # both know before they connect again
                self.after(noticed, self._peer, node, node.incarnation, peer, False, there.connection)
        self.after(RECONNECT + self.rng.randint(100, RECONNECT), self._connect, one, other)

    def block(self, sender: NodeId, to: NodeId) -> None:
        """A partition in one direction; several may lie on top of each other."""
        self.network.links[sender, to].blocked += 1

    def unblock(self, sender: NodeId, to: NodeId) -> None:
        link = self.network.links[sender, to]
        if link.blocked == 0:
            return
        link.blocked -= 1
        if link.blocked == 0:
            held, link.held = link.held, []
            for message in held:
                self._transmit(link, sender, self.nodes[to], message)
            self._connect(sender, to)

    def pause(self, name: NodeId, duration: int) -> None:
        node = self.nodes[name]
        node.busy_until = max(node.busy_until, self.now + duration)
        self.say(name, "pause", f"{duration / 1000:.1f}ms")

    def resume(self, name: NodeId) -> None:
        """End a pause now."""
        self.nodes[name].busy_until = self.now
        self._wake(name)

    def set_log_available(self, available: bool) -> None:
        self._log_access.set_available(available)

    def append_to_log(self, topic: str, partition: int, value: bytes | None, **rest: Any) -> int:
        """A record from outside the protocol (a producer of input)."""
        return self._log_access.add(topic, partition, value, **rest)

    def command(self, name: NodeId, client: ClientId, request: int, command: Message) -> None:
        """A client's command arrives at a node, unless the node is down."""
        node = self.nodes[name]
        self.at(self.now, self._command, node, node.incarnation, client, request, command)

    def _put_off(self, node: Node, event: tuple[int, Callable[..., None], tuple[Any, ...]]) -> None:
        if not node.backlog:
            self.at(node.busy_until, self._wake, node.id)
        node.backlog.append(event)

    def _wake(self, name: NodeId) -> None:
        node = self.nodes[name]
        if node.backlog and node.busy_until > self.now:
            self.at(node.busy_until, self._wake, name)
            return
        backlog, node.backlog = node.backlog, []
        for made, call, args in backlog:  # with their old numbers, so that their order is kept
            heappush(self._heap, (self.now, made, call, args))

    # Inputs to machines.

    def give(self, node: Node, method: Callable[..., Effects], *args: Any) -> None:
        """One input to a node's machine, and the effects that it has."""
        self.inputs += 1
        if node.cost:
            node.busy_until = self.now + node.cost
        carry = self._carry
        try:
            for effect in method(*args):
                if not node.up:
                    return
                carry[type(effect)](node, effect)
        except Exception as error:  # a machine must never raise: this is a finding, not an accident
            self.say(node.id, "RAISED", error)
            self.history.violations.append(
                Violation("a machine never raises", f"{node.id}: {type(error).__name__}: {error}", self.now)
            )
            self.stop()

    def _message(
        self, node: Node, sender: NodeId, link: Link | None, connection: int, message: Message
    ) -> None:
        if not node.up or (link is not None and link.connection != connection):
            return
        if self.trace is not None:
            self.trace.add(self.now, node.id, f"<- {sender}", message)
        self.give(node, node.machine.on_message, sender, message)

    def _timer(self, node: Node, incarnation: int, name: str, number: int) -> None:
        if not node.up or node.incarnation != incarnation or node.timers.get(name) != number:
            return
        del node.timers[name]
        if self.trace is not None:
            self.trace.add(self.now, node.id, "timer", name)
        self.give(node, node.machine.on_timer, name)

    def _command(
        self, node: Node, incarnation: int, client: ClientId, request: int, command: Message
    ) -> None:
        if not node.up or node.incarnation != incarnation:
            return
        if self.trace is not None:
            self.trace.add(self.now, node.id, f"<- {client}", f"#{request}", command)
        self.give(node, node.machine.on_command, client, request, command)

    def _peer(self, node: Node, incarnation: int, peer: NodeId, up: bool, connection: int) -> None:
        if not node.up or node.incarnation != incarnation:
            return
        if up and self.network.links[node.id, peer].connection != connection:
            return
        self.say(node.id, "peer up" if up else "peer lost", peer)
        self.give(node, node.machine.on_peer, peer, up)

    def _connect(self, one: NodeId, other: NodeId) -> None:
        there, back = self.network.links[one, other], self.network.links[other, one]
        ends = self.nodes[one], self.nodes[other]
        if there.up or not (ends[0].up and ends[1].up):
            return
        if there.blocked or back.blocked:
            return  # the end of the partition connects them
        if self.now < there.ready:
            self.at(there.ready, self._connect, one, other)
            return
        there.up = back.up = True
        there.arrival = back.arrival = self.now
        for node, peer in ((ends[0], other), (ends[1], one)):
            self.at(self.now, self._peer, node, node.incarnation, peer, True, there.connection)

    # Effects of machines.

    def _send(self, node: Node, effect: Send) -> None:
        if self.trace is not None:
            self.trace.add(self.now, node.id, f"-> {effect.to}", effect.message)
        to = self.nodes.get(effect.to)
        if to is None:
            raise LookupError(f"{node.id} sends to {effect.to}, which is no node")
        if to is node:
            self.after(1, self._to_self, node, node.incarnation, effect.message)
            return
        self._transmit(self.network.links[node.id, effect.to], node.id, to, effect.message)

    def _to_self(self, node: Node, incarnation: int, message: Message) -> None:
        if node.incarnation == incarnation:
            self._message(node, node.id, None, 0, message)

    def _transmit(self, link: Link, sender: NodeId, to: Node, message: Message) -> None:
        network = self.network
        if self._loose:
            if link.blocked or network.lost():
                return
            self.after(network.delay(), self._message, to, sender, None, 0, message)
            if network.doubled():
                self.after(network.delay(), self._message, to, sender, None, 0, message)
            return
        if not link.up:
            return
        if link.blocked:
            link.held.append(message)
        elif network.lost():
            self.disconnect(sender, to.id)
        else:
            link.arrival = max(link.arrival, self.now + network.delay())
            self.at(link.arrival, self._message, to, sender, link, link.connection, message)

    def _persist(self, node: Node, effect: Persist | Compact) -> None:
        if self.trace is not None:
            what = effect.record if type(effect) is Persist else effect
            self.trace.add(self.now, node.id, "persist", what)
        if node.disk.write(effect):
            self._flush(node)

    def _flush(self, node: Node) -> None:
        node.disk.begin_flush()
        latency = node.disk.latency
        self.after(latency + int(latency * self.rng.random()), self._flushed, node, node.incarnation)

    def _flushed(self, node: Node, incarnation: int) -> None:
        if not node.up or node.incarnation != incarnation:
            return
        for token in node.disk.end_flush():
            self.give(node, node.machine.on_persisted, token)
            if not node.up or self.stopped:
                return
        if node.disk.waiting and not node.disk.flushing:
            self._flush(node)
        if self.on_flush is not None:
            self.on_flush(node.id)

    def _set_timer(self, node: Node, effect: SetTimer) -> None:
        self._made += 1
        node.timers[effect.name] = self._made
        when = self.now + max(1, int(effect.after * 1_000_000 * node.clock))
        self.at(when, self._timer, node, node.incarnation, effect.name, node.timers[effect.name])

    def _cancel_timer(self, node: Node, effect: CancelTimer) -> None:
        node.timers.pop(effect.name, None)

    def _deliver(self, node: Node, effect: Deliver) -> None:
        self.say(node.id, "DELIVER", effect.item)
        self.history.delivered(node.id, Delivered(self.now, effect.item))

    def _reply(self, node: Node, effect: Reply) -> None:
        self.say(node.id, f"=> {effect.client}", f"#{effect.request}", effect.result)
        self.on_reply(effect.client, effect.request, effect.result)

    def _note(self, node: Node, effect: Note) -> None:
        self.say(node.id, "note", effect.text)

    def halt(self, node: Node, effect: Halt) -> None:
        self.say(node.id, "halt", effect.reason)
        self.crash(node.id)
        self.after(self.rng.randint(5_000, 50_000), self.start, node.id)

    def say(self, node: str, verb: str, *detail: Any) -> None:
        if self.trace is not None:
            self.trace.add(self.now, node, verb, *detail)
