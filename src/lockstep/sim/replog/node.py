"""One node of the replicated log: a leader per epoch, a majority's disks, a key-value store on top.

The rules, each of which `bugs.Bug` can break:

1. An epoch has at most one leader: a node votes once in an epoch, and writes the vote down before it
   speaks. It votes only for a candidate whose log is as complete as its own.
2. A follower confirms an entry only when its disk holds it and all before it, and it takes entries only
   from the leader of the newest epoch that it has heard of.
3. An entry is committed when a majority's disks hold it and it is of the leader's own epoch; entries
   before it are committed with it.
4. A command is executed when it is committed, in log order, and once: a client numbers its requests, and
   one that is not above the client's last is a repetition. Reads go through the log, too.

The machine keeps `log[p - 1]` at position p; position 0 is the empty log.
"""

from collections.abc import Iterator, Sequence

from lockstep.protocol.machine import (
    CancelTimer,
    ClientId,
    Deliver,
    Effect,
    Effects,
    Machine,
    Message,
    NodeId,
    Note,
    Persist,
    Reply,
    Send,
    SetTimer,
    Token,
)
from lockstep.sim.replog.bugs import Bug
from lockstep.sim.replog.messages import (
    Answer,
    Canvass,
    Command,
    Committed,
    CompareAndSet,
    Cut,
    DurableRecord,
    Entry,
    Get,
    Mismatch,
    NotLeader,
    PeerMessage,
    Promise,
    Put,
    Replicate,
    Stored,
    Vote,
    Written,
)

ELECTION = "election"
CANVASS = "canvass"
HEARTBEAT = "heartbeat"
MAX_BACKLOG = 1_000
"""Commands beyond this many uncommitted ones are not taken: the client repeats them."""


class LogNode(Machine):
    """The machine. `nodes` are all nodes of the group, this one included, in the same order everywhere."""

    PROTOCOL = "replicated-log"
    MESSAGES = PeerMessage
    RECORDS = DurableRecord
    COMMANDS = Command
    RESULTS = Answer | NotLeader

    def __init__(
        self,
        node: NodeId,
        nodes: Sequence[NodeId],
        *,
        heartbeat: float = 0.05,
        patience: float = 0.2,
        spread: float = 1.0,
        batch: int = 4,
        bug: Bug | None = None,
    ) -> None:
        self.node = node
        self._peers = [peer for peer in nodes if peer != node]
        self._rank = list(nodes).index(node)
        self._size = len(nodes)
        self._quorum = self._size // 2 + (0 if bug is Bug.SMALL_QUORUM else 1)
        self._heartbeat, self._patience, self._batch = heartbeat, patience, batch
        self._spread = spread
        self._bug = bug

        self.epoch = 0
        self.voted_for: NodeId | None = None
        self.leader: NodeId | None = None
        self.log: list[Entry] = []
        self.committed = 0
        self.store: dict[str, str] = {}
        self._sessions: dict[ClientId, tuple[int, Answer]] = {}
        self._votes: set[NodeId] = set()
        self._canvassing = False

        self._safe_epoch = 0
        """The epoch that this node's disk knows of."""
        self._safe = 0
        """The log's disk holds it up to here."""
        self._verified = 0
        """The log equals the leader's up to here."""
        self._serial = 0
        self._cut_serial = 0
        self._next: dict[NodeId, int] = {}
        self._stored: dict[NodeId, int] = {}
        self._stored_before: dict[NodeId, int] = {}

    # Inputs.

    def on_start(self, durable: Sequence[Message]) -> Effects:
        for record in durable:
            match record:
                case Promise(epoch=epoch, voted_for=voted_for):
                    self.epoch, self.voted_for = epoch, voted_for
                case Cut(after=after):
                    del self.log[after:]
                case Written(position=position, entry=entry):
                    assert position == len(self.log) + 1, "the durable log has a hole"
                    self.log.append(entry)
        self._safe, self._safe_epoch = len(self.log), self.epoch
        yield self._election_timer()

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        match message:
            case Canvass():
                yield from self._on_canvass(sender, message)
            case Vote():
                yield from self._on_vote(sender, message)
            case Replicate():
                yield from self._on_replicate(sender, message)
            case Stored():
                yield from self._on_stored(sender, message)
            case Mismatch():
                yield from self._on_mismatch(sender, message)

    def on_timer(self, name: str) -> Effects:
        if name == ELECTION and self.leader != self.node:
            self.epoch += 1
            self.voted_for, self.leader = self.node, None
            self._votes, self._canvassing, self._verified = set(), True, 0
            yield self._election_timer()
            yield from self._promise(("canvass", self.epoch))
        elif name == CANVASS and self._canvassing:
            yield from self._canvass()
        elif name == HEARTBEAT and self.leader == self.node:
            for peer in self._peers:
                if self._stored[peer] == self._stored_before[peer] and self._bug is not Bug.NO_RETRANSMISSION:
                    self._next[peer] = self._stored[peer] + 1
                self._stored_before[peer] = self._stored[peer]
                yield self._replicate(peer)
            yield SetTimer(HEARTBEAT, self._heartbeat)

    def on_persisted(self, token: Token) -> Effects:
        match token:
            case ("canvass", int(epoch)):
                self._safe_epoch = max(self._safe_epoch, epoch)
                if epoch == self.epoch and self._canvassing:
                    yield from self._canvass()
                    yield from self._count_vote(self.node)
            case ("vote", int(epoch), str(candidate)):
                self._safe_epoch = max(self._safe_epoch, epoch)
                if epoch == self.epoch and self.voted_for == candidate:
                    yield Send(candidate, Vote(epoch, True))
            case ("promise", int(epoch)):
                self._safe_epoch = max(self._safe_epoch, epoch)
                yield from self._acknowledge()
            case ("written", int(serial), int(position)):
                if serial > self._cut_serial:
                    self._safe = max(self._safe, position)
                    yield from self._acknowledge()

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        if self.leader != self.node:
            yield Reply(client, request, NotLeader(self.leader or ""))
            return
        if self._bug is Bug.LOCAL_READ and isinstance(command, Get):
            yield Reply(client, request, Answer(self.store.get(command.key)))
            return
        last = self._sessions.get(client)
        if last is not None and last[0] == request and self._bug is not Bug.DEDUP_OFF_BY_ONE:
            yield Reply(client, request, last[1])
            return
        if len(self.log) - self.committed >= MAX_BACKLOG:
            return
        yield from self._write(Entry(self.epoch, client, request, command))
        if self._bug is Bug.REPLY_BEFORE_COMMIT:
            yield Reply(client, request, _execute(dict(self.store), command))
        for peer in self._peers:
            yield self._replicate(peer)

    # Elections.

    def _canvass(self) -> Iterator[Effect]:
        for peer in self._peers:
            if peer not in self._votes:
                yield Send(peer, Canvass(self.epoch, self._epoch_at(len(self.log)), len(self.log)))
        yield SetTimer(CANVASS, self._heartbeat)

    def _on_canvass(self, candidate: NodeId, message: Canvass) -> Iterator[Effect]:
        if message.epoch > self.epoch:
            yield from self._enter(message.epoch)
        mine = (self._epoch_at(len(self.log)), len(self.log))
        complete = (message.last_epoch, message.last_position) >= mine or self._bug is Bug.VOTE_FOR_ANYONE
        if message.epoch < self.epoch or self.voted_for not in (None, candidate) or not complete:
            yield Send(candidate, Vote(self.epoch, False))
            return
        self.voted_for = candidate
        yield self._election_timer()
        yield from self._promise(("vote", self.epoch, candidate))

    def _on_vote(self, voter: NodeId, message: Vote) -> Iterator[Effect]:
        if message.epoch > self.epoch:
            yield from self._enter(message.epoch)
        elif message.granted and message.epoch == self.epoch and self._canvassing:
            yield from self._count_vote(voter)

    def _count_vote(self, voter: NodeId) -> Iterator[Effect]:
        self._votes.add(voter)
        if len(self._votes) < self._quorum:
            return
        self._canvassing, self.leader = False, self.node
        yield Note(f"leads epoch {self.epoch}")
        self._next = {peer: len(self.log) + 1 for peer in self._peers}
        self._stored = dict.fromkeys(self._peers, 0)
        self._stored_before = dict.fromkeys(self._peers, 0)
        yield CancelTimer(ELECTION)
        yield SetTimer(HEARTBEAT, self._heartbeat)
        yield from self._write(Entry(self.epoch))
        for peer in self._peers:
            yield self._replicate(peer)

    def _enter(self, epoch: int) -> Iterator[Effect]:
        """A newer epoch: whoever led before leads no more."""
        if self.leader == self.node:
            yield CancelTimer(HEARTBEAT)
            yield self._election_timer()
        self.epoch, self.voted_for, self.leader = epoch, None, None
        self._canvassing, self._verified = False, 0
        yield from self._promise(("promise", epoch))

    def _promise(self, token: Token) -> Iterator[Effect]:
        """Write down the epoch and the vote; `on_persisted` goes on from there."""
        if self._bug is Bug.FORGOTTEN_VOTE:
            yield from self.on_persisted(token)
        else:
            yield Persist(Promise(self.epoch, self.voted_for), token)

    def _election_timer(self) -> SetTimer:
        # Nodes take turns in being the first to lose patience, so that candidates do not collide for ever.
        turn = (self._rank + self.epoch) % self._size
        return SetTimer(ELECTION, self._patience * (1 + self._spread * turn / self._size))

    # Replication: the leader's side.

    def _replicate(self, peer: NodeId) -> Send:
        after = self._next[peer] - 1
        entries = tuple(self.log[after : after + self._batch])
        self._next[peer] = after + len(entries) + 1
        return Send(peer, Replicate(self.epoch, after, self._epoch_at(after), entries, self.committed))

    def _on_stored(self, peer: NodeId, message: Stored) -> Iterator[Effect]:
        if message.epoch > self.epoch:
            yield from self._enter(message.epoch)
        if message.epoch != self.epoch or self.leader != self.node:
            return
        if message.position > self._stored[peer]:
            self._stored[peer] = message.position
            yield from self._advance()
        if self._next[peer] <= len(self.log) and self._next[peer] <= self._stored[peer] + 1:
            yield self._replicate(peer)

    def _on_mismatch(self, peer: NodeId, message: Mismatch) -> Iterator[Effect]:
        if message.epoch > self.epoch:
            yield from self._enter(message.epoch)
        elif message.epoch != self.epoch or self.leader != self.node or self._bug is Bug.NO_RETRANSMISSION:
            return
        elif self._stored[peer] <= message.position < self._next[peer] - 1:  # else it is an old one
            self._next[peer] = message.position + 1
            yield self._replicate(peer)

    def _advance(self) -> Iterator[Effect]:
        """Commit what a majority's disks hold."""
        held = sorted([self._safe, *self._stored.values()], reverse=True)
        position = held[self._quorum - 1]
        if self._epoch_at(position) == self.epoch:
            yield from self._commit(position)

    # Replication: the follower's side.

    def _on_replicate(self, leader: NodeId, message: Replicate) -> Iterator[Effect]:
        if message.epoch < self.epoch and (self._bug is not Bug.STALE_EPOCH or self.leader == self.node):
            yield Send(leader, Mismatch(self.epoch, 0))
            return
        if message.epoch > self.epoch:
            yield from self._enter(message.epoch)
        assert self.leader != self.node, f"two leaders in epoch {self.epoch}: {leader} and {self.node}"
        self.leader, self._canvassing = leader, False
        yield self._election_timer()
        last = len(self.log)
        if message.after > last or self._epoch_at(message.after) != message.after_epoch:
            if self._bug is Bug.BLIND_COMMIT:
                yield from self._commit(min(message.committed, last))
            yield Send(leader, Mismatch(self.epoch, min(last, max(0, message.after - 1))))
            return
        for position, entry in enumerate(message.entries, start=message.after + 1):
            if position <= len(self.log):
                if self.log[position - 1].epoch == entry.epoch:
                    continue
                yield from self._cut(position, entry)
            else:
                yield from self._write(entry)
        self._verified = max(self._verified, message.after + len(message.entries))
        yield from self._commit(min(message.committed, self._verified))
        yield from self._acknowledge()

    def _cut(self, position: int, entry: Entry) -> Iterator[Effect]:
        """Replace the log from `position` on by `entry`."""
        if self._bug is Bug.WRONG_SUFFIX:
            del self.log[position:]
            yield Persist(Cut(position))
            return
        del self.log[position - 1 :]
        self._serial += 1
        self._cut_serial = self._serial
        self._safe = min(self._safe, position - 1)
        yield Persist(Cut(position - 1))
        yield from self._write(entry)

    def _acknowledge(self) -> Iterator[Effect]:
        if self.leader == self.node:
            yield from self._advance()
        elif self.leader is not None and self._safe_epoch == self.epoch:
            safe = len(self.log) if self._bug is Bug.ACK_BEFORE_PERSIST else self._safe
            yield Send(self.leader, Stored(self.epoch, min(safe, self._verified)))

    # Both sides.

    def _write(self, entry: Entry) -> Iterator[Effect]:
        self.log.append(entry)
        self._serial += 1
        if self._bug is Bug.NO_FSYNC:
            self._safe = len(self.log)
            return
        yield Persist(Written(len(self.log), entry), ("written", self._serial, len(self.log)))

    def _commit(self, position: int) -> Iterator[Effect]:
        while self.committed < min(position, len(self.log)):
            self.committed += 1
            entry = self.log[self.committed - 1]
            if entry.command is None:
                yield Deliver(Committed(self.committed, "", 0, None, False))
                continue
            last, _ = self._sessions.get(entry.client, (0, None))
            fresh = entry.request >= last if self._bug is Bug.DEDUP_OFF_BY_ONE else entry.request > last
            if fresh:
                self._sessions[entry.client] = (entry.request, _execute(self.store, entry.command))
            yield Deliver(Committed(self.committed, entry.client, entry.request, entry.command, fresh))
            request, answer = self._sessions[entry.client]
            if (
                self.leader == self.node
                and request == entry.request
                and self._bug is not Bug.REPLY_BEFORE_COMMIT
            ):
                yield Reply(entry.client, entry.request, answer)

    def _epoch_at(self, position: int) -> int:
        return self.log[position - 1].epoch if 0 < position <= len(self.log) else 0


def _execute(store: dict[str, str], command: Command) -> Answer:
    match command:
        case Get(key=key):
            return Answer(store.get(key))
        case Put(key=key, value=value):
            store[key] = value
            return Answer()
        case CompareAndSet(key=key, expected=expected, value=value):
            if store.get(key) != expected:
                return Answer(done=False)
            store[key] = value
            return Answer()
