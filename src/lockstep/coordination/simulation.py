"""ZAB in the simulator: servers with a small replicated store on top, and clients that use it.

The store is the smallest application of `zab.interface`: writes and reads of a few keys, all through the
one history. Every server delivers what it applied, from the first transaction on in each of its lives, so
that the checkers can compare whole histories; a snapshot carries the list along.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from lockstep.coordination.zab.interface import (
    Checkpoint,
    Command,
    Committed,
    Following,
    Leading,
    Looking,
    NotServing,
    Propose,
    Request,
    Restore,
    SnapshotReady,
    SnapshotStored,
    SnapshotWanted,
    StoreSnapshot,
    ToLeader,
    Zxid,
    counter_of,
    epoch_of,
)
from lockstep.coordination.zab.planted import BUGS
from lockstep.coordination.zab.records import RECORD, Checkpointed, Logged, Member, Truncated
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import Settings, Variant, variant
from lockstep.errors import UsageError
from lockstep.protocol.machine import (
    ClientId,
    Deliver,
    Effect,
    Effects,
    Machine,
    Message,
    NodeId,
    Reply,
    SetTimer,
    Token,
)
from lockstep.sim.checkers.linearizable import linearizable
from lockstep.sim.checkers.order import exactly_once, prefix_agreement
from lockstep.sim.checkers.progress import eventual_answer, eventual_delivery
from lockstep.sim.faults import MILLISECOND, SECOND, Permits
from lockstep.sim.history import History, Operation, Violation
from lockstep.sim.history import Sequence as Deliveries
from lockstep.sim.scenario import Scenario
from lockstep.sim.world import World

ONE_LEADER = "one leader per epoch"
ZXIDS = "zxids go up without a gap"


class Put(Struct, frozen=True, tag="put"):
    key: str
    value: str


class Get(Struct, frozen=True, tag="get"):
    key: str


class Asked(Struct, frozen=True):
    """A client's operation on its way through the history."""

    client: ClientId
    request: int
    operation: Put | Get


class Applied(Struct, frozen=True):
    """What a server delivers: one transaction, and whether it was the first of its request."""

    zxid: Zxid
    asked: Asked
    fresh: bool


class Led(Struct, frozen=True):
    epoch: int


class Answer(Struct, frozen=True):
    value: str | None


class State(Struct):
    applied: list[Applied]
    values: dict[str, str]
    answers: dict[ClientId, tuple[int, str | None]]


class StoreNode(Machine):
    """A ZAB server with the store on top of it."""

    def __init__(self, server: Server, checkpoint_every: int) -> None:
        self.server = server
        self.state = State([], {}, {})
        self._every = checkpoint_every
        self._pending: dict[tuple[ClientId, int], None] = {}
        self._epoch = 0
        self._later: list[Command] = []

    def on_start(self, durable: Sequence[RECORD]) -> Effects:
        return self._run(self.server.on_start(_purged(durable)))

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        return self._run(self.server.on_message(sender, message))

    def on_timer(self, name: str) -> Effects:
        if name == "store":
            later, self._later = self._later, []
            return [e for command in later for e in self._run(self.server.on_command("store", 0, command))]
        return self._run(self.server.on_timer(name))

    def on_persisted(self, token: Token) -> Effects:
        return self._run(self.server.on_persisted(token))

    def on_peer(self, peer: NodeId, up: bool) -> Effects:
        return self._run(self.server.on_peer(peer, up))

    def on_command(self, client: ClientId, request: int, command: Put | Get) -> Effects:
        done = self.state.answers.get(client)
        if done is not None and done[0] == request:
            return [Reply(client, request, Answer(done[1]))]
        self._pending[client, request] = None
        payload = msgspec.msgpack.encode(Asked(client, request, command))
        return self._run(self.server.on_command(client, request, ToLeader(payload)))

    def _run(self, effects: list[Effect]) -> list[Effect]:
        """Carry out what the machine delivers to the store; pass on everything else."""
        out: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            match effect:
                case Deliver(item):
                    waiting[:0] = self._take(item, out)
                case Reply(client="store"):
                    pass
                case _:
                    out.append(effect)
        return out

    def _take(self, item: Any, out: list[Effect]) -> list[Effect]:
        match item:
            case Committed(zxid, txns):
                for place, txn in enumerate(txns):
                    self._apply(zxid + place, msgspec.msgpack.decode(txn, type=Asked), out)
                return self._checkpoint()
            case Request(payload=payload):
                # Every now and then a transaction goes twice: `Propose` takes several, and each is applied.
                txns = (payload, payload) if len(payload) % 3 == 0 else (payload,)
                return self.server.on_command("store", 0, Propose(txns, self._epoch))
            case Leading(epoch):
                self._epoch = epoch
                out.append(Deliver(Led(epoch)))
            case Looking() | Following():
                self._epoch = 0
            case Restore(zxid, reference):
                self._restore(reference, out)
            case SnapshotWanted(token):
                last = self.state.applied[-1].zxid if self.state.applied else 0
                self._answer_later(SnapshotReady(token, last, msgspec.msgpack.encode(self.state)), out)
            case StoreSnapshot(token, _, blob):
                self._answer_later(SnapshotStored(token, blob), out)
        return []

    def _answer_later(self, command: Command, out: list[Effect]) -> None:
        self._later.append(command)
        out.append(SetTimer("store", 0.002))

    def _apply(self, zxid: Zxid, asked: Asked, out: list[Effect]) -> None:
        state = self.state
        done = state.answers.get(asked.client, (0, None))
        fresh = done[0] < asked.request
        if fresh:
            operation = asked.operation
            if isinstance(operation, Put):
                state.values[operation.key] = operation.value
            answer = state.values.get(operation.key) if isinstance(operation, Get) else None
            state.answers[asked.client] = (asked.request, answer)
        applied = Applied(zxid, asked, fresh)
        state.applied.append(applied)
        out.append(Deliver(applied))
        if (asked.client, asked.request) in self._pending:
            del self._pending[asked.client, asked.request]
            done = state.answers[asked.client]
            if done[0] == asked.request:
                out.append(Reply(asked.client, asked.request, Answer(done[1])))

    def _checkpoint(self) -> list[Effect]:
        applied = self.state.applied
        if not self._every or len(applied) % self._every:
            return []
        blob = msgspec.msgpack.encode(self.state)
        return self.server.on_command("store", 0, Checkpoint(applied[-1].zxid, blob))

    def _restore(self, reference: bytes, out: list[Effect]) -> None:
        known = len(self.state.applied)
        self.state = msgspec.msgpack.decode(reference, type=State)
        out.extend(Deliver(applied) for applied in self.state.applied[known:])


def _purged(records: Sequence[RECORD]) -> list[RECORD]:
    """What is left when a host drops all that rule 13 of `zab.interface` lets it drop."""
    at = max((place for place, record in enumerate(records) if isinstance(record, Checkpointed)), default=-1)
    if at < 0:
        return list(records)
    checkpoint = records[at]
    assert isinstance(checkpoint, Checkpointed)
    kept: list[RECORD] = [
        record
        for record in records[:at]
        if isinstance(record, Truncated)
        or (isinstance(record, Logged) and record.zxid + len(record.txns) - 1 > checkpoint.zxid)
    ]
    return kept + list(records[at:])


class Coordination(Scenario):
    title: ClassVar[str] = "ZAB with RT-ZooKeeper's techniques, 1 to 9 servers"
    bugs: ClassVar[tuple[str, ...]] = tuple(BUGS)

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        if bug is not None and bug not in BUGS:
            raise UsageError(f"no bug is called {bug!r}", hint=f"choose one of: {', '.join(BUGS)}")
        count = rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5, 7, 9))
        self.nodes = [str(number) for number in range(1, count + 1)]
        # ZAB is made for ordered channels. On a loose network it must stay safe, and need not get on.
        self.permits = Permits(loose=rng.random() < 0.3, lost_disks=1 if count >= 3 else 0)
        self.client_count = rng.randint(2, 4)
        self._commands = rng.randint(8, 40)
        self.think_time = rng.choice((1, 5, 30, 100)) * MILLISECOND
        self.duration = 12 * SECOND
        name: Variant = rng.choice(("rtzk", "rtzk", "rtzk", "rtzk-l", "vanilla"))
        if bug is not None and BUGS[bug].variant is not None:
            name = BUGS[bug].variant or name
        self.settings = msgspec.structs.replace(
            variant(name, Settings(log_keep=rng.choice((0, 2, 50)), ceiling_span=rng.choice((2, 8, 64)))),
            founding_wait=3600.0,
            # Safety never rests on the finalize wait: without one, false leaders are the rule.
            finalize_wait=rng.choice((0.05, 0.2) if name == "vanilla" else (0.0, 0.002, 0.008)),
            batch_limit=rng.choice((1, 3, 100)),
            snapshot_chunk=rng.choice((100, 10_000)),
        )
        self._checkpoint_every = rng.choice((0, 3, 10))
        self._starts = 0
        self._leader_kills = rng.choice((0, 0, 60, 250, 1000)) * MILLISECOND

    def begin(self, world: World) -> None:
        super().begin(world)
        if self._leader_kills:
            self._kill_later(world)

    def _kill_later(self, world: World) -> None:
        world.after(1 + int(world.rng.expovariate(1 / self._leader_kills)), self._kill_leader, world)

    def _kill_leader(self, world: World) -> None:
        """Leaders are where it hurts: crash the newest one, sometimes with others, and let them come back."""
        if world.now >= self.calm_at:
            return
        led = [
            (delivered.item.epoch, sequence.node)
            for sequence in world.history.current()
            for delivered in sequence.deliveries
            if isinstance(delivered.item, Led) and world.nodes[sequence.node].up
        ]
        if led:
            victims = {max(led)[1]}
            if world.rng.random() < 0.4:
                victims |= set(world.rng.sample(self.nodes, world.rng.randint(1, len(self.nodes))))
            for name in sorted(victims):
                world.crash(name)
                world.after(1 + int(world.rng.expovariate(1 / (100 * MILLISECOND))), world.start, name)
        self._kill_later(world)

    def machine(self, node: NodeId) -> Machine:
        self._starts += 1
        kind = BUGS[self.bug].server if self.bug is not None else Server
        server = kind(int(node), [int(name) for name in self.nodes], self.settings, self._starts)
        return StoreNode(server, self._checkpoint_every)

    def command(self, client: ClientId, request: int, rng: Random) -> Message | None:
        if request > self._commands:
            return None
        key = rng.choice("xyz")
        return Get(key) if rng.random() < 0.4 else Put(key, f"{client}.{request}")

    def redirect(self, result: Any) -> NodeId | None:
        return "" if isinstance(result, NotServing) else None

    def settled(self, history: History) -> bool:
        if self._loose():
            return True
        lengths = {len(sequence.deliveries) for sequence in _applied(history.current())}
        return self.clients is not None and self.clients.finished() and len(lengths) == 1

    def check(self, history: History) -> Iterable[Violation]:
        yield from judge(history.sequences, history.operations)
        if not self._loose() and not self._crippled():
            yield from eventual_answer(history.operations)
            yield from eventual_delivery(_applied(history.current()))

    def _crippled(self) -> bool:
        """A disk was lost before enough servers had joined: fewer than a quorum can prove who they are."""
        if self.world is None:
            return False
        members = [
            node
            for node in self.world.nodes.values()
            if any(
                isinstance(r, Member) or (isinstance(r, Checkpointed) and r.member) for r in node.disk.safe
            )
        ]
        return len(members) < len(self.nodes) // 2 + 1

    def _loose(self) -> bool:
        return self.world is not None and self.world.network.faults.loose


def judge(sequences: Iterable[Deliveries], operations: Iterable[Operation]) -> Iterator[Violation]:
    """The promises that hold at any time: agreement, nothing acknowledged lost, linearizable operations."""
    given, asked = list(sequences), list(operations)
    yield from _one_leader(given)
    applied = _applied(given)
    answered = [(o.client, o.request) for o in asked if o.returned is not None]
    yield from prefix_agreement(applied)
    yield from exactly_once(applied, _identity, answered)
    yield from _zxids(applied)
    yield from linearizable(asked, key=lambda command: command.key, step=_one_copy)


def _applied(sequences: Iterable[Deliveries]) -> list[Deliveries]:
    return [
        Deliveries(s.node, s.incarnation, [d for d in s.deliveries if isinstance(d.item, Applied)])
        for s in sequences
    ]


def _identity(item: Applied) -> Hashable | None:
    return (item.asked.client, item.asked.request) if item.fresh else None


def _one_leader(sequences: Iterable[Deliveries]) -> Iterator[Violation]:
    leaders: dict[int, str] = {}
    for sequence in sequences:
        for delivered in sequence.deliveries:
            if isinstance(delivered.item, Led):
                other = leaders.setdefault(delivered.item.epoch, sequence.name)
                if other != sequence.name:
                    detail = f"epoch {delivered.item.epoch} is led by {other} and by {sequence.name}"
                    yield Violation(ONE_LEADER, detail, delivered.at)


def _zxids(sequences: Iterable[Deliveries]) -> Iterator[Violation]:
    for sequence in sequences:
        last = 0
        for delivered in sequence.deliveries:
            zxid = delivered.item.zxid
            if zxid != last + 1 and not (epoch_of(zxid) > epoch_of(last) and counter_of(zxid) == 1):
                yield Violation(ZXIDS, f"{sequence.name} applies {zxid:#x} after {last:#x}", delivered.at)
                break
            last = zxid


def _one_copy(state: Hashable, command: Put | Get) -> tuple[Hashable, Any]:
    match command:
        case Put(value=value):
            return value, Answer(None)
        case Get():
            return state, Answer(state if isinstance(state, str) else None)
