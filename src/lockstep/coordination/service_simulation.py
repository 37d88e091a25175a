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
from lockstep.coordination.clients import Settings
from lockstep.coordination.service import Service
from lockstep.coordination.simulated_client import TICK_MS, SimulatedClient, Violation
from lockstep.coordination.transactions import Created, DataSet, MultiDone
from lockstep.coordination.tree import Tree
from lockstep.coordination.wire.codes import is_session
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

__all__ = ["Violation", "World"]


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
