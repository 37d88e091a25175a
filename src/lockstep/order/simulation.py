"""Both orders in the simulator: `lockstep sim liverobin` and `lockstep sim kazoo`.

Promises: one sequence at all replicas and over all their restarts, nothing lost, nothing repeated, and
progress once faults stop. In some runs several nodes die for good: f of f + 1 sites, and of those that make the
order all but one (section III claims that f > 1 needs nothing else). In some the order topic is trimmed again and
again. In some of LiveRobin's, partitions are added to inputs, and each generator finds them in its own time and
order. The planted bugs are in `planted.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import ClassVar

import msgspec

from lockstep.order.growth import Trimmed
from lockstep.order.kazoo import Depose, Deposed, Elected, Orderer, by_priority, in_slices, in_turn
from lockstep.order.liverobin import Admitted, AskEnds, AskGrown, Ends, Generator, Grown
from lockstep.order.merge import Input, Position
from lockstep.order.planted import GROWING, ORDERERS, REPLICAS, TRIMMING
from lockstep.order.records import Queue
from lockstep.order.replica import Replica
from lockstep.order.trim import Prefix, SiteProgress, prefix
from lockstep.protocol.machine import (
    ClientId,
    Deliver,
    Effects,
    LogRecord,
    Machine,
    Message,
    NodeId,
    Reply,
    Send,
    Token,
)
from lockstep.sim.checkers.order import no_gap
from lockstep.sim.faults import MILLISECOND, SECOND, Permits
from lockstep.sim.history import History, Violation
from lockstep.sim.history import Sequence as Deliveries
from lockstep.sim.scenario import Scenario
from lockstep.sim.world import World

ORDER = "order"
ONE_SEQUENCE = "same sequence at all replicas"
NOTHING_REPEATED = "nothing is repeated"
NOTHING_LOST = "nothing is lost once faults stop"


class Hosted(Machine):
    """Hosts an order-making machine in the simulation: answers what it asks its host for."""

    def __init__(
        self,
        node: NodeId,
        inner: Machine,
        ends: Callable[[Sequence[Queue]], Ends],
        depose: Callable[[int], None],
        grown: Callable[[], Grown],
    ) -> None:
        self._node = node
        self._inner = inner
        self._ends = ends
        self._depose = depose
        self._grown = grown
        self._added: list[Queue] = []

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return self._answer(self._inner.on_start(durable))

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        return self._answer(self._inner.on_command(sender, 0, message))

    def on_timer(self, name: str) -> Effects:
        return self._answer(self._inner.on_timer(name))

    def on_record(self, record: LogRecord) -> Effects:
        return self._answer(self._inner.on_record(record))

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        return self._answer(self._inner.on_command(client, request, command))

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        return self._answer(self._inner.on_append_failed(token, reason))

    def _answer(self, effects: Effects) -> Effects:
        for effect in effects:
            match effect:
                case Deliver(item=AskEnds()):
                    yield Send(self._node, self._ends(self._added))
                case Deliver(item=AskGrown()):
                    yield Send(self._node, self._grown())
                case Deliver(item=Admitted(queues=queues)):
                    self._added += queues
                case Deliver(item=Depose(epoch=epoch)):
                    self._depose(epoch)
                case Reply():
                    pass  # the host's own question: nobody waits for an answer here
                case _:
                    yield effect


class Named(Machine):
    """Hosts a replica: tells which partition each input is of, for numbers of queues could mean different ones."""

    def __init__(self, inner: Replica) -> None:
        self._inner = inner

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return self._name(self._inner.on_start(durable))

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        return self._name(self._inner.on_message(sender, message))

    def on_record(self, record: LogRecord) -> Effects:
        return self._name(self._inner.on_record(record))

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        return self._name(self._inner.on_command(client, request, command))

    def _name(self, effects: Effects) -> Effects:
        for effect in effects:
            match effect:
                case Deliver(item=Input() as one):
                    yield Deliver(Taken(self._inner.queues[one.queue], one.offset, one.sn))
                case _:
                    yield effect


class Taken(msgspec.Struct, frozen=True):
    """An input that a site consumed, with the partition that its queue is."""

    queue: Queue
    offset: int
    sn: int


class OrderScenario(Scenario):
    """Sites that follow one shard's order over a few inputs that grow at different speeds."""

    permits = Permits(loose=False, lost_disks=0)
    calm_at = 2 * SECOND
    duration = 6 * SECOND
    makers: ClassVar[str] = ""

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self.queues = tuple((f"in-{number}", 0) for number in range(rng.randint(2, 4)))
        self.sites = [f"site-{number}" for number in range(1, rng.randint(2, 4) + 1)]
        self.maker_nodes = [f"{self.makers}-{number}" for number in range(1, 4)]
        self.nodes = [*self.sites, *self.maker_nodes]
        self.doomed: list[NodeId] = []
        if rng.random() < 0.3:
            self.doomed = [
                *rng.sample(self.sites, rng.randint(1, len(self.sites) - 1)),
                *rng.sample(self.maker_nodes, rng.randint(1, len(self.maker_nodes) - 1)),
            ]
        self.dead: set[NodeId] = set()
        self.trims = rng.random() < 0.4 or bug in TRIMMING
        self.base: Position | None = None
        """Where the order topic begins, once it was trimmed."""
        self.appended = 0
        self.extra: list[Queue] = []
        """Partitions that were added since the run began."""

    @property
    def survivors(self) -> list[NodeId]:
        return [site for site in self.sites if site not in self.doomed]

    def machine(self, node: NodeId) -> Machine:
        if node in self.dead:
            return Machine()  # what the simulator starts again stays silent for ever
        if node in self.sites:
            return self.replica()
        maker = self.maker(node, self.maker_nodes.index(node))
        return Hosted(node, maker, self.ends, self.complain, self.grown)

    def replica(self) -> Machine:
        kind = REPLICAS.get(self.bug or "", Replica)
        return Named(kind(ORDER, 0, self.queues, growing=self.growing))

    @property
    def growing(self) -> frozenset[Queue]:
        """Those queues whose topics may grow."""
        return frozenset()

    def grown(self) -> Grown:
        """What a look for added partitions says: now and then not all of them, and in any order."""
        assert self.world is not None
        found = list(self.extra)
        if self.world.now < self.calm_at:
            found = self.rng.sample(found, self.rng.randint(0, len(found)))
        base = self.base
        known = Trimmed(0, ()) if base is None else Trimmed(base.order_offset, base.added)
        return Grown(tuple(found), known.order_offset, known.added)

    def complain(self, epoch: int) -> None:
        """A maker says that the leader of `epoch` is silent."""

    def maker(self, node: NodeId, rank: int) -> Machine:
        raise LookupError("subclasses make the order")

    @property
    def starts(self) -> tuple[int, ...]:
        return (0,) * len(self.queues)

    def ends(self, added: Sequence[Queue]) -> Ends:
        """What a query of the end offsets says: now and then one partition cannot be asked."""
        assert self.world is not None
        log = self.world.log
        if not log.available:
            return Ends((None,) * len(self.queues))
        return Ends(
            tuple(None if self.rng.random() < 0.02 else log.end(*queue) for queue in self.queues),
            tuple((*queue, log.end(*queue)) for queue in added if self.rng.random() > 0.02),
        )

    def begin(self, world: World) -> None:
        super().begin(world)
        for queue in self.queues:
            self.feed(queue)
        for node in self.doomed:
            world.at(self.rng.randint(1, self.calm_at), self._die, node)
        if self.trims:
            world.after(self.rng.randint(1, 200 * MILLISECOND), self._trim)

    def feed(self, queue: Queue) -> None:
        """Idle, steady and bursty inputs in one run."""
        assert self.world is not None
        pace = int(self.rng.choice((2, 10, 50)) * MILLISECOND)
        self.world.after(self.rng.randint(1, 50 * MILLISECOND), self._grow, queue, pace)

    def _trim(self) -> None:
        """Delete what no site needs any more, now and then; a site that is dead for good needs nothing."""
        world = self.world
        assert world is not None
        sites = [
            SiteProgress(site, next(iter(world.nodes[site].disk.safe[-1:]), None))
            for site in self.sites
            if site not in self.dead
        ]
        found = self.prefix(sites)
        if found is not None and world.log.available:
            self.base = found.position
            world.log.store.trim_now(ORDER, 0, found.position.order_offset)
        world.after(self.rng.randint(1, 200 * MILLISECOND), self._trim)

    def prefix(self, sites: list[SiteProgress]) -> Prefix | None:
        if self.bug == "trimmed-too-far":
            sites = sorted(sites, key=lambda one: one.oldest.order_offset if one.oldest else 0)[-1:]
        return prefix(sites)

    def _die(self, node: NodeId) -> None:
        assert self.world is not None
        self.dead.add(node)
        self.world.crash(node)

    def _grow(self, queue: Queue, pace: int) -> None:
        world = self.world
        assert world is not None
        if world.now > self.calm_at or self.appended > 400:
            return
        for _ in range(self.rng.choice((1, 1, 1, 5))):
            world.append_to_log(*queue, b"input")
            self.appended += 1
        world.after(self.rng.randint(1, 2 * pace), self._grow, queue, pace)

    def settled(self, history: History) -> bool:
        return all(self._caught_up(history, site) for site in self.survivors)

    def _caught_up(self, history: History, site: NodeId) -> bool:
        """In any of its lives: one that begins at a position behind the last input delivers nothing more."""
        done = (
            sequence.deliveries[-1].item.sn + 1
            for sequence in history.sequences
            if sequence.node == site and sequence.deliveries
        )
        return max(done, default=0) >= self.appended

    def check(self, history: History) -> Iterable[Violation]:
        at_sites = [sequence for sequence in history.sequences if sequence.node in self.sites]
        yield from no_gap(at_sites, lambda item: int(item.sn))
        yield from self._one_sequence(at_sites)
        for site in self.survivors:
            if not self._caught_up(history, site):
                yield Violation(NOTHING_LOST, f"{site} never delivers all {self.appended} inputs")

    def _one_sequence(self, sequences: Iterable[Deliveries]) -> Iterator[Violation]:
        by_number: dict[int, tuple[Queue, int]] = {}
        by_input: dict[tuple[Queue, int], int] = {}
        for sequence in sequences:
            for delivered in sequence.deliveries:
                item: Taken = delivered.item
                name = (item.queue, item.offset)
                if by_number.setdefault(item.sn, name) != name:
                    yield Violation(
                        ONE_SEQUENCE,
                        f"number {item.sn} is input {name} at {sequence.name}, "
                        f"{by_number[item.sn]} elsewhere",
                        delivered.at,
                    )
                    return
                if by_input.setdefault(name, item.sn) != item.sn:
                    yield Violation(
                        NOTHING_REPEATED,
                        f"input {name} is number {by_input[name]} and {item.sn}",
                        delivered.at,
                    )
                    return


class LiveRobin(OrderScenario):
    """Cuts by three generators of different rank. In some runs up to three partitions are added to inputs."""

    title = "LiveRobin: cuts and a deterministic merge, generators die"
    makers = "generator"
    bugs = ("cut-not-monotone", "tie-by-arrival", "next-reset", "trimmed-too-far", "grown-by-arrival")

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self.additions = rng.randint(1, 3) if rng.random() < 0.4 or bug in GROWING else 0

    @property
    def growing(self) -> frozenset[Queue]:
        return frozenset(self.queues)

    def maker(self, node: NodeId, rank: int) -> Machine:
        offset = self.base.order_offset if self.base is not None else 0
        return Generator(node, ORDER, 0, self.starts, rank=rank, order_offset=offset, growing=self.growing)

    def begin(self, world: World) -> None:
        super().begin(world)
        for _ in range(self.additions):
            world.at(self.rng.randint(1, self.calm_at // 2), self._add)
        if self.additions:
            for node in (*self.maker_nodes, *(self.sites if self.bug in GROWING else ())):
                world.after(self.rng.randint(1, 100 * MILLISECOND), self._discover, node)

    def _add(self) -> None:
        topic, _ = self.rng.choice(self.queues)
        queue = (topic, 1 + sum(topic == name for name, _ in self.extra))
        self.extra.append(queue)
        self.feed(queue)

    def _discover(self, node: NodeId) -> None:
        """A node looks for partitions that were added: each in its own time."""
        world = self.world
        assert world is not None
        if self.extra and world.nodes[node].up and node not in self.dead:
            world.command(node, "growth", 0, self.grown())
        pause = 10 if node in self.sites else 100
        world.after(self.rng.randint(1, pause * MILLISECOND), self._discover, node)


class KaZoo(OrderScenario):
    """Orders by elected orderers. The election here is as bad as a coordination service may be: a leader
    can be replaced while it lives, without knowing it for a while."""

    title = "KaZoo: orders by an elected leader, leaders die and linger as zombies"
    makers = "orderer"
    bugs = ("published-twice", "zombie-append", "before-read-back", "position-forgotten")

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self.epoch = 0
        self.leader: NodeId | None = None
        self.session = 0
        """Which incarnation of the leader was elected: its node goes with it."""
        self.warned = 0
        self.cap = rng.choice((3, 1000))
        self.recent = rng.choice((0, 1, 3))
        self.policy = rng.choice((in_turn, by_priority(1), in_slices(2)))

    def maker(self, node: NodeId, rank: int) -> Machine:
        orderer = ORDERERS.get(self.bug or "", Orderer)
        position = self.base
        if position is not None and self.bug == "position-forgotten":
            position = msgspec.structs.replace(position, inputs=self.starts, version=0)
        return orderer(
            node,
            ORDER,
            0,
            self.starts,
            patience=50,
            cap=self.cap,
            recent=self.recent,
            policy=self.policy,
            position=position,
        )

    def begin(self, world: World) -> None:
        super().begin(world)
        world.after(1, self._watch)

    def complain(self, epoch: int) -> None:
        """As `Candidacy.depose` has it: a leader that was elected after that epoch is warned first."""
        assert self.world is not None
        if epoch < self.epoch and self.warned != self.epoch:
            self.warned = self.epoch
        else:
            self.world.after(self.rng.randint(1, 20 * MILLISECOND), self._elect)

    def _watch(self) -> None:
        """Ephemeral nodes, seen from afar: a dead leader is replaced, a living one now and then too."""
        world = self.world
        assert world is not None
        dead = self.leader is None or self.leader in self.dead or not self._is_there(self.leader)
        expired = world.now < self.calm_at and self.rng.random() < 0.05
        if dead or expired:
            self._elect()
        world.after(self.rng.randint(10 * MILLISECOND, 50 * MILLISECOND), self._watch)

    def _is_there(self, leader: NodeId) -> bool:
        assert self.world is not None
        node = self.world.nodes[leader]
        return node.up and node.incarnation == self.session

    def _elect(self) -> None:
        world = self.world
        assert world is not None
        candidates = [node for node in self.maker_nodes if world.nodes[node].up and node not in self.dead]
        if not candidates:
            return
        before, self.leader = self.leader, self.rng.choice(candidates)
        self.epoch += 1
        self.session = world.nodes[self.leader].incarnation
        world.command(self.leader, "coordination", 0, Elected(self.epoch))
        if before is not None and before != self.leader:
            delay = self.rng.randint(1, 200 * MILLISECOND)
            world.after(delay, world.command, before, "coordination", 0, Deposed())
