"""LiveRobin's heartbeat generator (section V-B) as a machine that appends cuts to the order topic.

Instead of putting a heartbeat into every input stream, a generator asks where the inputs end and appends that
as a **cut**: the merge then behaves as if a heartbeat stood there. Inputs stay as their producers wrote them.

The paper leaves the generator's death open. Here several run, each with a rank. All of them read the order
topic. The one of rank 0 publishes what it sees at once; the one of rank r publishes only what has stayed
uncovered for r periods. So in calm times there is one cut per period, and a dead generator is replaced within a
period, by nobody's decision: readers take the pointwise maximum, so it does not matter who published.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.records import Cut, decode, encode
from lockstep.protocol.machine import (
    Append,
    ClientId,
    Deliver,
    Effects,
    LogRecord,
    Machine,
    Message,
    Reply,
    SetTimer,
    Subscribe,
    Token,
)


class AskEnds(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: ask where the shard's inputs end, and answer with the command `Ends`."""


class Ends(msgspec.Struct, frozen=True, tag=True):
    """End offsets of the shard's queues; None for one that could not be asked: it keeps its last value."""

    ends: tuple[int | None, ...]

    def over(self, known: tuple[int, ...]) -> tuple[int, ...]:
        """What is known after this answer: no end ever goes back."""
        return tuple(old if new is None else max(old, new) for old, new in zip(known, self.ends, strict=True))


class Generator(Machine):
    """One heartbeat generator of one shard."""

    def __init__(
        self,
        name: str,
        topic: str,
        shard: int,
        starts: tuple[int, ...],
        *,
        rank: int = 0,
        period: float = 0.004,
    ) -> None:
        self._name = name
        self._topic = topic
        self._shard = shard
        self._period = period
        self._accepted = Acceptance(len(starts), ends=starts)
        self._seen: deque[tuple[int, ...]] = deque([starts], maxlen=rank + 1)
        self._published = starts

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return (Subscribe(self._topic, self._shard), SetTimer("beat", self._period))

    def on_timer(self, name: str) -> Effects:
        return (SetTimer("beat", self._period), Deliver(AskEnds()))

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        match command:
            case Ends() if len(command.ends) == self._accepted.queues:
                return (*self._saw(command), Reply(client, request, None))
        return ()

    def on_record(self, record: LogRecord) -> Effects:
        self._accepted.accept(decode(record.value or b""))
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """Say it again at the next beat: a cut that is published twice is void the second time."""
        self._published = self._accepted.ends
        return ()

    def _saw(self, ends: Ends) -> Effects:
        self._seen.append(ends.over(self._seen[-1]))
        if len(self._seen) < (self._seen.maxlen or 1):
            return ()
        due = self._seen[0]
        covered = all(cut >= end for cut, end in zip(self._accepted.ends, due, strict=True))
        if covered or due == self._published:
            return ()
        self._published = due
        return (Append(self._topic, self._shard, encode(Cut(due, self._name))),)
