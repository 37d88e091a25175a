"""The service in simulation: several servers over a model of atomic broadcast, and clients that move between them.

`simulation.py` proves the protocol below; here it is taken for granted, so that thousands of steps cost little:
one list is the history, each server has been given a prefix of it. What is random, from one seed: when requests
reach the leader, when proposals commit, how far each server lags, who loses its leader, which proposals of a
dead leader survive, who restarts, who is brought up by snapshot; and all that clients do.

The checkers stand on the clients' side of the wire and know only the promises:

- **out of order**: replies do not come in the order of the requests;
- **back in time**: a client reads a state older than one that it has seen;
- **read before event**: a client reads what a watch of its own has not told it yet;
- **missed event**: at the end a watched node has changed, and nobody said so;
- **twice** or **lost**: a write is in the history twice, or was acknowledged and is not there;
- **unanswered**: after all faults have ended a request has no reply;
- **disagreement**: servers that were given the same history hold different trees;
- **orphan**: an ephemeral node outlives its session.
"""

from collections import Counter, deque
from random import Random

from lockstep.coordination import transactions
from lockstep.coordination.clients import Client, Settings
from lockstep.coordination.service import Service
from lockstep.coordination.transactions import Created, DataSet, MultiDone
from lockstep.coordination.tree import OPEN_ACL, Tree
from lockstep.coordination.wire.codes import Code, Mode, Op, is_session
from lockstep.coordination.wire.jute import Reader, pack_buffer, pack_int, pack_string
from lockstep.coordination.wire.records import (
    REPLY_HEADER,
    Connect,
    Create,
    SetWatches,
    decode_connect_reply,
    encode_connect,
    encode_request,
    pack_create,
    pack_multi,
    pack_set_watches,
    read_stat,
)
from lockstep.coordination.zab.interface import (
    Command,
    Committed,
    Following,
    Leading,
    Looking,
    Propose,
    Request,
    ToLeader,
    zxid_of,
)

PATHS = ("/k0", "/k1", "/k2")
TICK_MS = 100


class Violation(AssertionError):
    """A promise was broken; the text begins with its name."""


class Port:
    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.is_closed = False

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        self.is_closed = True

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class World:
    """One run. `run` raises `Violation`, or returns what happened as counts."""

    def __init__(
        self, seed: int, *, servers: int = 3, clients: int = 3, service: type[Service] = Service
    ) -> None:
        self.chance = Random(seed)
        self.now = 1_000_000
        self.epoch = 0
        self.counter = 0
        self.starts = 0
        self.leader = 0
        self.history: list[tuple[int, bytes]] = []
        self.proposed: list[bytes] = []
        self.forwards: dict[int, deque[bytes]] = {}
        self.given: dict[int, int] = {}
        self.services: dict[int, Service] = {}
        self.away: set[int] = set()
        self.waking: dict[int, None] = {}
        self.counts: Counter[str] = Counter()
        self._service = service
        for server in range(1, servers + 1):
            self._start(server, Tree(), 0)
        self.clients = [SimulatedClient(self, number) for number in range(clients)]
        self.next_value = 0
        self._elect()

    def run(self, steps: int = 400) -> Counter[str]:
        for _ in range(steps):
            self._step()
        self._settle()
        self._check()
        return self.counts

    # Faults and progress.

    def _step(self) -> None:
        roll = self.chance.random()
        if roll < 0.45:
            self.chance.choice(self.clients).act()
        elif roll < 0.62:
            self._forward()
        elif roll < 0.77:
            self._commit()
        elif roll < 0.92:
            self._deliver()
        elif roll < 0.95:
            self._pass_time(1500 if self.chance.random() < 0.1 else self.chance.randrange(1, 40))
        elif roll < 0.965:
            self._elect()
        elif roll < 0.98:
            self._lose_follower()
        elif roll < 0.99:
            self._rejoin()
        elif roll < 0.995:
            self._restart(self.chance.choice(list(self.services)))
        self._flush()

    def _forward(self) -> None:
        waiting = [server for server, queue in self.forwards.items() if queue and server not in self.away]
        if waiting:
            server = self.chance.choice(waiting)
            self.services[self.leader].on_delivery(Request(server, self.forwards[server].popleft()))

    def _commit(self, most: int | None = None) -> None:
        count = min(len(self.proposed), self.chance.randrange(4) if most is None else most)
        for payload in self.proposed[:count]:
            self.counter += 1
            self.history.append((zxid_of(self.epoch, self.counter), payload))
        del self.proposed[:count]

    def _deliver(self) -> None:
        behind = [s for s in self.services if s not in self.away and self.given[s] < len(self.history)]
        if behind:
            self._give(self.chance.choice(behind), self.chance.randrange(1, 4))

    def _give(self, server: int, count: int) -> None:
        for zxid, payload in self.history[self.given[server] :][:count]:
            self.given[server] += 1
            self.services[server].on_delivery(Committed(zxid, (payload,)))

    def _elect(self) -> None:
        """The leader is lost: a part of what it proposed survives, the rest never was."""
        self.counts["elections"] += 1
        self._commit(self.chance.randrange(len(self.proposed) + 1))
        self.proposed.clear()
        for server, service in self.services.items():
            service.on_delivery(Looking("the leader is gone"))
            self.forwards[server].clear()
        if self.chance.random() < 0.5:
            for client in self.clients:
                if self.chance.random() < 0.5:
                    client.act()
        self.away.clear()
        self.epoch += 1
        self.counter = 0
        self.leader = self.chance.choice(list(self.services))
        for server in self.services:
            self._give(server, len(self.history))
        for server, service in self.services.items():
            is_leader = server == self.leader
            service.on_delivery(Leading(self.epoch) if is_leader else Following(self.leader, self.epoch))

    def _lose_follower(self) -> None:
        """One follower loses its leader: some of what it sent arrives, the rest is lost."""
        followers = [s for s in self.services if s != self.leader and s not in self.away]
        if followers:
            server = self.chance.choice(followers)
            for _ in range(self.chance.randrange(len(self.forwards[server]) + 1)):
                self.services[self.leader].on_delivery(Request(server, self.forwards[server].popleft()))
            self.forwards[server].clear()
            self.services[server].on_delivery(Looking("the connection is gone"))
            self.away.add(server)

    def _rejoin(self) -> None:
        for server in sorted(self.away):
            if self.chance.random() < 0.5:
                ahead = self.given[self.leader]
                if self.given[server] < ahead:
                    self.counts["snapshots"] += 1
                    self.services[server].restore(Tree.restore(self.services[self.leader].tree.snapshot()))
                    self.given[server] = ahead
            self._give(server, len(self.history))
            self.away.discard(server)
            self.services[server].on_delivery(Following(self.leader, self.epoch))

    def _restart(self, server: int) -> None:
        self.counts["restarts"] += 1
        for client in self.clients:
            if client.server == server:
                client.disconnect()
        self._start(server, Tree.restore(self.services[server].tree.snapshot()), self.given[server])
        if server == self.leader:
            self._elect()
        else:
            self.away.add(server)

    def _start(self, server: int, tree: Tree, given: int) -> None:
        self.starts += 1
        self.forwards[server] = deque()
        self.given[server] = given
        service = self._service(
            Settings(server, self.starts, tick_ms=TICK_MS, grace_ms=10**9),
            command=lambda command: self._command(server, command),
            wake=lambda: self.waking.setdefault(server),
            now_ms=lambda: self.now,
            steady_ms=lambda: self.now,
        )
        service.tree = tree
        self.services[server] = service

    def _command(self, server: int, command: Command) -> None:
        match command:
            case ToLeader(payload):
                self.forwards[server].append(payload)
            case Propose(txns, epoch):
                if server == self.leader and epoch == self.epoch:
                    self.proposed += txns

    def _pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        for service in self.services.values():
            service.on_tick()

    def _flush(self) -> None:
        while self.waking:
            servers = list(self.waking)
            self.waking.clear()
            for server in servers:
                self.services[server].flush()
        for client in self.clients:
            client.absorb()
        if self.waking:
            self._flush()

    # The end.

    def _settle(self) -> None:
        """No more faults: everything must come to rest, with every client connected and told."""
        for _ in range(200):
            self._rejoin()
            for client in self.clients:
                client.connect()
            self._flush()
            while any(self.forwards.values()):
                self._forward()
                self._flush()
            self._commit(len(self.proposed))
            for server in self.services:
                self._give(server, len(self.history))
            self._flush()
            self._pass_time(5)
            self._flush()
            resting = all(client.is_open and not client.outstanding for client in self.clients)
            given = all(count == len(self.history) for count in self.given.values())
            if resting and given and not self.proposed and not any(self.forwards.values()):
                return
        raise Violation("unanswered: requests wait although nothing fails any more")

    def _check(self) -> None:
        digests = {service.tree.digest() for service in self.services.values()}
        if len(digests) > 1:
            raise Violation("disagreement: servers with one history hold different trees")
        tree = self.services[self.leader].tree
        for path, node in tree.nodes.items():
            if is_session(node.owner) and node.owner not in tree.sessions:
                raise Violation(f"orphan: {path} outlived its session")
        written: Counter[bytes] = Counter()
        for _, payload in self.history:
            operation = transactions.decode(payload).operation
            for part in operation.ops if isinstance(operation, MultiDone) else (operation,):
                if isinstance(part, Created | DataSet) and part.data:
                    written[part.data] += 1
        for client in self.clients:
            for value in client.acknowledged:
                if not written[value]:
                    raise Violation(f"lost: {value!r} was acknowledged")
            for path, seen in client.watching.items():
                node_now = tree.nodes.get(path)
                if (node_now.mzxid if node_now else 0) != seen:
                    raise Violation(f"missed event: {path} has changed since client {client.number} looked")
        for value, times in written.items():
            if times > 1:
                raise Violation(f"twice: {value!r} is in the history {times} times")
        self.counts["transactions"] = len(self.history)


class SimulatedClient:
    """Speaks the protocol byte by byte, and remembers what it was promised."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.server = 0
        self.acknowledged: list[bytes] = []
        self._port = Port()
        self._client: Client | None = None
        self._xid = 0
        self.outstanding: deque[tuple[int, str, str, bytes, bool]] = deque()
        self._forget()

    @property
    def is_open(self) -> bool:
        return self._client is not None and self.session != 0 and not self._greeting

    def act(self) -> None:
        chance = self.world.chance
        if self._client is None:
            self.connect()
        elif chance.random() < 0.04:
            self.disconnect()
        elif self.is_open and len(self.outstanding) < 4:
            self._ask()

    def connect(self) -> None:
        if self._client is not None:
            return
        self.server = self.world.chance.choice(list(self.world.services))
        self._port = Port()
        self._client = Client(self._port, "10.0.0.1", self.world.now)
        self._greeting = True
        service = self.world.services[self.server]
        service.opened(self._client)
        connect = Connect(0, self.last_zxid, 20 * TICK_MS, self.session, self.password, False)
        service.on_frame(self._client, encode_connect(connect)[4:])

    def disconnect(self) -> None:
        if self._client is not None:
            self.world.services[self.server].closed(self._client)
        self._client = None
        self.outstanding.clear()

    def absorb(self) -> None:
        """Read what has arrived, checking every promise on the way."""
        while self._client is not None and self._port.frames:
            frame = self._port.frames.popleft()
            if self._greeting:
                self._greeted(frame)
            else:
                self._read(frame)
        if self._client is not None and self._port.is_closed:
            self._client = None
            self.outstanding.clear()

    def _forget(self) -> None:
        self.session = 0
        self.password = bytes(16)
        self.last_zxid = 0
        self.watching: dict[str, int] = {}
        self._greeting = False

    def _greeted(self, frame: bytes) -> None:
        timeout, session, password = decode_connect_reply(frame[4:])
        self._greeting = False
        if timeout == 0:
            self.world.counts["expired"] += 1
            self.disconnect()
            self._forget()
            return
        self.session, self.password = session, password
        if self.watching:
            data = [path for path, seen in self.watching.items() if seen]
            exist = [path for path, seen in self.watching.items() if not seen]
            self._send(
                -8, Op.SET_WATCHES2, pack_set_watches(SetWatches(self.last_zxid, data, exist, [], [], []))
            )

    def _ask(self) -> None:
        chance = self.world.chance
        path = chance.choice(PATHS)
        self.world.next_value += 1
        value = b"v%d" % self.world.next_value
        self._xid += 1
        watch = chance.random() < 0.5
        flag = b"\1" if watch else b"\0"
        match chance.randrange(9):
            case 0 | 1:
                op, kind, body = Op.GET_DATA, "read", pack_string(path) + flag
            case 2:
                op, kind, body = Op.EXISTS, "exists", pack_string(path) + flag
            case 3:
                op, kind, body = Op.CREATE, "write", _creation(path, value, Mode.PERSISTENT)
            case 4:
                op, kind, body = Op.CREATE, "write", _creation(path, value, Mode.EPHEMERAL)
            case 5:
                op, kind, body = Op.CREATE, "write", _creation("/s", value, Mode.EPHEMERAL_SEQUENTIAL)
            case 6:
                op, kind, body = Op.DELETE, "delete", pack_string(path) + pack_int(-1)
            case 7:
                ops = [(Op.SET_DATA, _setting(path, value)), (Op.CHECK, pack_string("/k0") + pack_int(-1))]
                op, kind, body = Op.MULTI, "multi", pack_multi(ops)
            case _:
                op, kind, body = Op.SET_DATA, "write", _setting(path, value)
        self.outstanding.append((self._xid, kind, path, value, watch))
        self._send(self._xid, op, body)

    def _send(self, xid: int, op: int, body: bytes) -> None:
        assert self._client is not None
        self.world.services[self.server].on_frame(self._client, encode_request(xid, op, body)[4:])

    def _read(self, frame: bytes) -> None:
        xid, zxid, code = REPLY_HEADER.unpack_from(frame, 4)
        body = Reader(frame, 4 + REPLY_HEADER.size)
        if xid == -1:
            body.int32(), body.int32()
            self.watching.pop(body.string(), None)
            self.last_zxid = max(self.last_zxid, zxid)
            self.world.counts["events"] += 1
            return
        if zxid < self.last_zxid:
            raise Violation(f"back in time: client {self.number} at {self.last_zxid:#x} got {zxid:#x}")
        self.last_zxid = zxid
        if xid < 0:
            return
        if not self.outstanding or self.outstanding[0][0] != xid:
            raise Violation(f"out of order: client {self.number} got the reply {xid}")
        _, kind, path, value, watch = self.outstanding.popleft()
        self.world.counts["replies"] += 1
        if kind in ("read", "exists"):
            self._check_read(kind, path, watch, code, body)
        elif kind == "write" and code == Code.OK:
            self.acknowledged.append(value)

    def _check_read(self, kind: str, path: str, watch: bool, code: int, body: Reader) -> None:
        if code not in (Code.OK, Code.NO_NODE):
            return
        if kind == "read" and code == Code.OK:
            body.buffer()
        shown = read_stat(body).mzxid if code == Code.OK else 0
        if self.watching.get(path, shown) != shown:
            raise Violation(f"read before event: client {self.number} reads {path} and was not told")
        if watch and (shown or kind == "exists"):
            self.watching[path] = shown


def _creation(path: str, value: bytes, mode: Mode) -> bytes:
    return pack_create(Create(path, value, OPEN_ACL, mode))


def _setting(path: str, value: bytes) -> bytes:
    return pack_string(path) + pack_buffer(value) + pack_int(-1)
