"""LiveRobin's heartbeat generator (section V-B) as a machine that appends cuts to the order topic.

Instead of putting a heartbeat into every input stream, a generator asks where the inputs end and appends that
as a **cut**: the merge then behaves as if a heartbeat stood there. Inputs stay as their producers wrote them.

The paper leaves the generator's death open. Here several run, each with a rank. The one of rank 0 publishes what
it sees at once, and need not read the order topic at all; the one of rank r reads it, publishes only what has
stayed uncovered for 2r of its looks, and while it hears cuts of others it looks only now and then. So in calm
times there is one cut per period, and a dead generator is replaced within a few, by nobody's decision: readers
take the pointwise maximum, so it does not matter who published.

A generator needs no history: a cut that it does not know of makes it publish one that is void. It may begin to
read the order topic anywhere.

**Partitions that are added** to an input are another matter: which number a new queue gets is decided by the
order topic (`acceptance.py`), so who names one in a cut must know what was added before. A generator whose host
has found new partitions (`Grown`), or that reads of some, first reads the order topic from a place where the list
is known. Then it proposes what the list lacks, in a cut that moves nothing else. Of several proposals the topic's
order decides: the others find theirs void, adopt what counts, and propose what it still lacks. The cuts between
name no queue that was not read back; they count whatever becomes of the proposals, so that nothing ever waits for
one.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.pace import IDLE, Pace
from lockstep.order.records import MAX_QUEUES, Cut, OrderRecord, Queue, decode, encode
from lockstep.protocol.machine import (
    Append,
    ClientId,
    Deliver,
    Effect,
    Effects,
    Halt,
    LogRecord,
    Machine,
    Message,
    Reply,
    SetTimer,
    Subscribe,
    Token,
)

QUIET = 0.005
"""Who hears others make the order rests so many seconds at a time, and looks at inputs when it hears nothing."""
FOLLOWED = 6
"""It looks at every so many-th of these rests in any case: the others may not reach all inputs."""
MAX_FAILURES = 1000
"""Appends that may fail in a row before a machine doubts its log and ends itself."""


class AskEnds(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: ask where the shard's inputs end, and answer with the command `Ends`."""


class Ends(msgspec.Struct, frozen=True, tag=True):
    """End offsets of the shard's queues; None for one that could not be asked: it keeps its last value.

    `more`: topic, partition and end of queues that were admitted later, as far as they could be asked.
    """

    ends: tuple[int | None, ...]
    more: tuple[tuple[str, int, int], ...] = ()

    def over(self, known: tuple[int, ...]) -> tuple[int, ...]:
        """What is known after this answer: no end ever goes back."""
        return tuple(old if new is None else max(old, new) for old, new in zip(known, self.ends, strict=True))


class Grown(msgspec.Struct, frozen=True, tag=True):
    """A command of the host: these partitions were added to topics of the shard.

    At `order_offset` of the order topic, `added` was the list of those that cuts had admitted.
    """

    queues: tuple[Queue, ...]
    order_offset: int = 0
    added: tuple[Queue, ...] = ()


class AskGrown(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: a cut names partitions that were added; answer with the command `Grown`."""


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: cuts name these queues too; from now on tell where they end (`Ends.more`)."""

    queues: tuple[Queue, ...]


@dataclass(frozen=True)
class _Look:
    """What is known after a look: where the first queues end, and those that were admitted later."""

    ends: tuple[int, ...]
    more: Mapping[Queue, int] = field(default_factory=dict)

    def then(self, seen: Ends) -> "_Look":
        more = dict(self.more)
        for topic, partition, end in seen.more:
            more[topic, partition] = max(end, more.get((topic, partition), 0))
        return _Look(seen.over(self.ends), more)

    def of(self, added: tuple[Queue, ...]) -> tuple[int, ...]:
        return self.ends + tuple(self.more.get(queue, 0) for queue in added)


class Generator(Machine):
    """One heartbeat generator of one shard. `order_offset`: where it begins to read the order topic.

    `growing`: those of its queues whose topics may grow."""

    def __init__(
        self,
        name: str,
        topic: str,
        shard: int,
        starts: tuple[int, ...],
        *,
        rank: int = 0,
        period: float = 0.004,
        idle: float = IDLE,
        order_offset: int = 0,
        growing: frozenset[Queue] = frozenset(),
    ) -> None:
        self._name = name
        self._topic = topic
        self._shard = shard
        self._rank = rank
        self._order_offset = order_offset
        self._pace = Pace(period, idle=idle)
        self._starts = starts
        self._growing = growing
        self._accepted = Acceptance(len(starts), ends=starts)
        self._seen = deque([_Look(starts)], maxlen=2 * rank + 1)
        self._published = Cut(starts, name)
        self._found: tuple[Queue, ...] = ()
        self._proposed: Cut | None = None
        self._knows_list = False
        self._has_asked = False
        self._heard = False
        self._passed = 0
        self._failures = 0

    @property
    def void(self) -> int:
        """Records of the order topic that did not count; a generator of rank 0 hardly ever reads them."""
        return self._accepted.void if self._rank or self._knows_list else 0

    def on_start(self, durable: Sequence[Message]) -> Effects:
        if self._rank == 0:
            return (self._beat(),)
        return (Subscribe(self._topic, self._shard, self._order_offset), self._beat())

    def on_timer(self, name: str) -> Effects:
        self._pace.rested()
        heard, self._heard = self._heard, False
        if self._rank and heard and self._passed < FOLLOWED - 1:
            self._passed += 1
            return (SetTimer("beat", max(QUIET, self._pace.pause)),)
        self._passed = 0
        return (self._beat(), Deliver(AskEnds()))

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        match command:
            case Ends() if len(command.ends) == len(self._starts):
                return (*self._saw(command), Reply(client, request, None))
            case Grown() if self._growing:
                return (*self._grew(command), Reply(client, request, None))
        return (Reply(client, request, None),)

    def on_record(self, record: LogRecord) -> Effects:
        return tuple(self._follow(decode(record.value or b"")))

    def on_appended(self, token: Token, offset: int) -> Effects:
        self._failures = 0
        if self._rank == 0 and not self._knows_list and isinstance(token, Cut):
            self._accepted.accept(token)
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """Say it again at the next beat: a cut that is published twice is void the second time."""
        self._published = Cut(self._accepted.ends, self._name, self._accepted.added)
        if token == self._proposed:
            self._proposed = None
        self._failures += 1
        if self._failures > MAX_FAILURES:
            return (Halt(f"the log took none of {MAX_FAILURES} cuts: {reason}"),)
        return ()

    def _follow(self, decoded: OrderRecord | None) -> Effects:
        if isinstance(decoded, Cut) and decoded.added and self._growing and not self._knows_list:
            if not self._has_asked:
                self._has_asked = True
                yield Deliver(AskGrown())
            decoded = Cut(decoded.ends[: len(self._starts)], decoded.by)
        before = len(self._accepted.added)
        match self._accepted.accept(decoded):
            case Cut(by=by, added=added):
                self._heard = self._heard or by != self._name
                if len(added) > before:
                    yield Deliver(Admitted(added[before:]))
                yield from self._moved()
        if self._proposed is not None and decoded == self._proposed:
            self._proposed = None
            yield from self._propose()

    def _saw(self, ends: Ends) -> Effects:
        before = self._seen[-1]
        self._seen.append(before.then(ends))
        if self._seen[-1] != before:
            yield from self._moved()
        yield from self._propose()
        if len(self._seen) < (self._seen.maxlen or 1):
            return
        added = self._accepted.added
        due = Cut(self._seen[0].of(added), self._name, added)
        covered = all(cut >= end for cut, end in zip(self._accepted.ends, due.ends, strict=True))
        if not covered and due != self._published:
            self._published = due
            yield self._append(due)

    def _grew(self, grown: Grown) -> Effects:
        topics = {topic for topic, _ in self._growing}
        ours = (queue for queue in grown.queues if queue[0] in topics and queue not in self._growing)
        self._found = tuple(dict.fromkeys((*self._found, *ours)))
        if self._knows_list:
            return
        self._knows_list = True
        self._accepted = Acceptance(
            len(self._starts),
            ends=self._starts + (0,) * len(grown.added),
            growing=self._growing,
            added=grown.added,
        )
        yield Subscribe(self._topic, self._shard, grown.order_offset)
        if grown.added:
            yield Deliver(Admitted(grown.added))

    def _propose(self) -> Effects:
        """Name what the list lacks, unless an answer to that is still to come."""
        known = self._accepted.added
        room = MAX_QUEUES - len(self._starts) - len(known)
        lacking = tuple(queue for queue in self._found if queue not in known)[:room]
        if lacking and self._knows_list and self._proposed is None:
            ends = self._accepted.ends + (0,) * len(lacking)
            self._proposed = Cut(ends, self._name, known + lacking)
            yield self._append(self._proposed)

    def _append(self, cut: Cut) -> Effect:
        return Append(self._topic, self._shard, encode(cut), token=cut)

    def _moved(self) -> Effects:
        return (self._beat(),) if self._pace.moved() else ()

    def _beat(self) -> Effect:
        return SetTimer("beat", self._pace.pause)
