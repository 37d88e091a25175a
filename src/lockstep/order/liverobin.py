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
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.pace import IDLE, Pace
from lockstep.order.records import Cut, decode, encode
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
    """End offsets of the shard's queues; None for one that could not be asked: it keeps its last value."""

    ends: tuple[int | None, ...]

    def over(self, known: tuple[int, ...]) -> tuple[int, ...]:
        """What is known after this answer: no end ever goes back."""
        return tuple(old if new is None else max(old, new) for old, new in zip(known, self.ends, strict=True))


class Generator(Machine):
    """One heartbeat generator of one shard. `order_offset`: where it begins to read the order topic."""

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
    ) -> None:
        self._name = name
        self._topic = topic
        self._shard = shard
        self._rank = rank
        self._order_offset = order_offset
        self._pace = Pace(period, idle=idle)
        self._accepted = Acceptance(len(starts), ends=starts)
        self._seen: deque[tuple[int, ...]] = deque([starts], maxlen=2 * rank + 1)
        self._published = starts
        self._heard = False
        self._passed = 0
        self._failures = 0

    @property
    def void(self) -> int:
        """Records of the order topic that did not count; a generator of rank 0 does not read them."""
        return self._accepted.void if self._rank else 0

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
            case Ends() if len(command.ends) == self._accepted.queues:
                return (*self._saw(command), Reply(client, request, None))
        return (Reply(client, request, None),)

    def on_record(self, record: LogRecord) -> Effects:
        match self._accepted.accept(decode(record.value or b"")):
            case Cut(by=by):
                self._heard = self._heard or by != self._name
                return self._moved()
        return ()

    def on_appended(self, token: Token, offset: int) -> Effects:
        self._failures = 0
        if self._rank == 0 and isinstance(token, Cut):
            self._accepted.accept(token)
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """Say it again at the next beat: a cut that is published twice is void the second time."""
        self._published = self._accepted.ends
        self._failures += 1
        if self._failures > MAX_FAILURES:
            return (Halt(f"the log took none of {MAX_FAILURES} cuts: {reason}"),)
        return ()

    def _saw(self, ends: Ends) -> Effects:
        before = self._seen[-1]
        self._seen.append(ends.over(before))
        if self._seen[-1] != before:
            yield from self._moved()
        if len(self._seen) < (self._seen.maxlen or 1):
            return
        due = self._seen[0]
        covered = all(cut >= end for cut, end in zip(self._accepted.ends, due, strict=True))
        if not covered and due != self._published:
            self._published = due
            cut = Cut(due, self._name)
            yield Append(self._topic, self._shard, encode(cut), token=cut)

    def _moved(self) -> Effects:
        return (self._beat(),) if self._pace.moved() else ()

    def _beat(self) -> Effect:
        return SetTimer("beat", self._pace.pause)
