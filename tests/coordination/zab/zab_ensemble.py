"""Servers in virtual time with the two channels of a real host: for tests that set up one exact situation.

Unlike the simulator, nothing here is random: every message takes `delay`, every write `disk` (what is asked
for during one shares the next, as in `protocol.commit`), and a test decides who crashes, who is cut off and
who notices when. The quorum star is opened by FOLLOWERINFO and closed as rule 10 of `interface` says.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from lockstep.coordination.zab.interface import (
    Committed,
    Dropped,
    Following,
    Leading,
    Looking,
    Propose,
    Restore,
    SnapshotReady,
    SnapshotStored,
    SnapshotWanted,
    StoreSnapshot,
)
from lockstep.coordination.zab.messages import channel, opens
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import Settings
from lockstep.protocol.machine import (
    CancelTimer,
    Compact,
    Deliver,
    Effect,
    Persist,
    Reply,
    Send,
    SetTimer,
)


class Sent:
    """One message on its way, for tests that look at the conversation."""

    def __init__(self, at: float, sender: int, to: int, message: Any) -> None:
        self.at, self.sender, self.to, self.message = at, sender, to, message
        self.body = getattr(message, "body", message)
        self.name = type(self.body).__name__


class Host:
    def __init__(self, id: int) -> None:
        self.id = id
        self.server: Server
        self.up = False
        self.life = 0
        self.to_write: list[Persist | Compact] = []
        self.is_writing = False
        self.durable: list[Any] = []
        self.timers: dict[str, int] = {}
        self.applied: list[tuple[int, bytes]] = []
        self.roles: list[Any] = []
        self.restored: list[int] = []
        self.replies: list[Any] = []
        self.deliveries: list[Any] = []


class Ensemble:
    def __init__(
        self,
        count: int,
        settings: Settings | None = None,
        *,
        delay: float = 0.0005,
        disk: float = 0.001,
        servers: dict[int, type[Server]] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.delay, self.disk = delay, disk
        self.now = 0.0
        self.hosts = {id: Host(id) for id in range(1, count + 1)}
        self.sent: list[Sent] = []
        self.cut: set[tuple[int, int]] = set()
        self.quorum: set[frozenset[int]] = set()
        self.drop: Callable[[Sent], bool] = lambda sent: False
        self._kinds = servers or {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # What a test does.

    def start(self, *ids: int) -> None:
        for id in ids or tuple(self.hosts):
            host = self.hosts[id]
            host.up, host.timers, host.applied = True, {}, []
            host.to_write, host.is_writing = [], False
            host.life += 1
            self._count += 1
            kind = self._kinds.get(id, Server)
            host.server = kind(id, list(self.hosts), self.settings, host.life + self._count)
            self._carry(host, host.server.on_start(list(host.durable)))
            for peer in self.hosts.values():
                if peer.up and peer is not host and not self._is_cut(id, peer.id):
                    self._peer(host, f"election:{peer.id}", True)
                    self._peer(peer, f"election:{id}", True)

    def crash(self, *ids: int, noticed: dict[int, float] | None = None, wipe: bool = False) -> None:
        """Crash servers; each peer notices after one delay, or after what `noticed` says for it."""
        for id in ids:
            host = self.hosts[id]
            host.up = False
            host.life += 1
            if wipe:
                host.durable = []
        for id in ids:
            for peer in self.hosts.values():
                if peer.up:
                    after = (noticed or {}).get(peer.id, self.delay)
                    self.after(after, lambda p=peer, i=id: self._lost(p, i))  # type: ignore[misc]

    def isolate(self, *ids: int) -> None:
        """Cut servers off, silently: nobody is told."""
        rest = [id for id in self.hosts if id not in ids]
        self.cut |= {(a, b) for a in ids for b in rest} | {(b, a) for a in ids for b in rest}

    def heal(self) -> None:
        healed, self.cut = self.cut, set()
        for one, other in sorted(healed):
            if self.hosts[one].up and self.hosts[other].up:
                self._peer(self.hosts[one], f"election:{other}", True)

    def run(self, seconds: float) -> None:
        self._run_until(self.now + seconds, lambda: False)

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> float:
        """Run until something holds; how long that took."""
        began = self.now
        assert self._run_until(self.now + seconds, condition), f"not within {seconds} s of virtual time"
        return self.now - began

    def propose(self, *txns: bytes, leader: int | None = None) -> Any:
        host = self.hosts[leader or self.leader()]
        self._carry(host, host.server.on_command("test", 1, Propose(txns, host.server.epoch)))
        return host.replies[-1]

    def command(self, id: int, command: Any) -> None:
        self._carry(self.hosts[id], self.hosts[id].server.on_command("test", 1, command))

    def settle(self, seconds: float = 10.0) -> int:
        """Run until every running server serves under one leader; the leader's id."""

        def settled() -> bool:
            following = self._following(self.leader())
            return following is not None and all(
                host.id == following.leader or (host.roles and host.roles[-1] == following)
                for host in self.running()
            )

        self.until(settled, seconds)
        return self.leader()

    # What a test looks at.

    def running(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.up]

    def leader(self) -> int:
        led = [h for h in self.running() if h.roles and isinstance(h.roles[-1], Leading)]
        return max(led, key=lambda h: h.roles[-1].epoch).id if led else 0

    def serving(self) -> bool:
        """A leader and a quorum follow."""
        leader = self.leader()
        following = [h for h in self.running() if h.roles and h.roles[-1] == self._following(leader)]
        return leader != 0 and len(following) + 1 >= len(self.hosts) // 2 + 1

    def conversation(self, since: float = 0.0) -> list[str]:
        return [sent.name for sent in self.sent if sent.at >= since]

    def writes(self, id: int, kind: type) -> list[Any]:
        return [record for record in self.hosts[id].durable if isinstance(record, kind)]

    def _following(self, leader: int) -> Following | None:
        return Following(leader, self.hosts[leader].server.epoch) if leader else None

    # The host's part.

    def after(self, delay: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay, self._count, call))

    def _run_until(self, end: float, condition: Callable[[], bool]) -> bool:
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return condition()
            self.now, _, call = heappop(self._heap)
            call()
        return True

    def _is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cut

    def _peer(self, host: Host, name: str, up: bool) -> None:
        life = host.life
        self.after(
            0,
            lambda: (
                self._carry(host, host.server.on_peer(name, up)) if host.up and host.life == life else None
            ),
        )

    def _lost(self, host: Host, peer: int) -> None:
        self._peer(host, f"election:{peer}", False)
        self._close(host.id, peer)

    def _close(self, one: int, other: int) -> None:
        pair = frozenset((one, other))
        if pair in self.quorum:
            self.quorum.discard(pair)
            for host, peer in ((self.hosts[one], other), (self.hosts[other], one)):
                if host.up:
                    self._peer(host, f"quorum:{peer}", False)

    def _carry(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(Sent(self.now, host.id, int(to), message))
                case Persist() | Compact():
                    self._write(host, effect)
                case SetTimer(name, after):
                    self._timer(host, name, after)
                case CancelTimer(name):
                    host.timers.pop(name, None)
                case Deliver(item):
                    self._deliver(host, item)
                case Reply(result=result):
                    host.replies.append(result)

    def _send(self, sent: Sent) -> None:
        self.sent.append(sent)
        pair = frozenset((sent.sender, sent.to))
        to = self.hosts[sent.to]
        if channel(sent.message) == "quorum":
            if opens(sent.message):
                if not to.up:
                    self._peer(self.hosts[sent.sender], f"quorum:{sent.to}", False)
                    return
                self.quorum.add(pair)
            elif pair not in self.quorum:
                return
        if self.drop(sent) or self._is_cut(sent.sender, sent.to) or not to.up:
            return
        life = to.life
        self.after(self.delay, lambda: self._arrive(to, life, sent))

    def _arrive(self, to: Host, life: int, sent: Sent) -> None:
        if to.up and to.life == life and not self._is_cut(sent.sender, sent.to):
            self._carry(to, to.server.on_message(str(sent.sender), sent.message))

    def _write(self, host: Host, effect: Persist | Compact) -> None:
        host.to_write.append(effect)
        if not host.is_writing:
            host.is_writing = True
            self.after(0, lambda life=host.life: self._commit(host, life))  # type: ignore[misc]

    def _commit(self, host: Host, life: int) -> None:
        batch, host.to_write = host.to_write, []

        def written() -> None:
            for effect in batch:
                if not host.up or host.life != life:
                    return
                if isinstance(effect, Persist):
                    host.durable.append(effect.record)
                else:
                    host.durable = list(effect.records)
                self._carry(host, host.server.on_persisted(effect.token))
            host.is_writing = bool(host.to_write)
            if host.is_writing:
                self._commit(host, life)

        if host.up and host.life == life:
            self.after(self.disk, written)

    def _timer(self, host: Host, name: str, after: float) -> None:
        self._count += 1
        number = host.timers[name] = self._count
        life = host.life

        def fire() -> None:
            if host.up and host.life == life and host.timers.get(name) == number:
                del host.timers[name]
                self._carry(host, host.server.on_timer(name))

        self.after(after, fire)

    def _deliver(self, host: Host, item: Any) -> None:
        host.deliveries.append(item)
        match item:
            case Looking() | Following() | Leading():
                host.roles.append(item)
                if isinstance(item, Looking):
                    for pair in [pair for pair in self.quorum if host.id in pair]:
                        self._close(*pair)
            case Committed(zxid, txns):
                host.applied += [(zxid + place, txn) for place, txn in enumerate(txns)]
            case Dropped(server):
                self._close(host.id, server)
            case Restore(zxid, reference):
                host.restored.append(zxid)
                host.applied = [(z, t) for z, t in _unpack(reference)]
            case SnapshotWanted(token):
                last = host.applied[-1][0] if host.applied else 0
                self.after(0, lambda: self.command(host.id, SnapshotReady(token, last, pack(host.applied))))
            case StoreSnapshot(token, _, blob):
                self.after(0, lambda: self.command(host.id, SnapshotStored(token, blob)))


def pack(applied: list[tuple[int, bytes]]) -> bytes:
    """The state of the tests' application: all that it applied."""
    return b"".join(b"%d:%b;" % (zxid, txn) for zxid, txn in applied)


def _unpack(blob: bytes) -> list[tuple[int, bytes]]:
    pairs = [part.split(b":") for part in blob.split(b";") if part]
    return [(int(zxid), txn) for zxid, txn in pairs]
