"""KaZoo (section IV): a leader decides on the order of consumption and publishes it; all follow the topic.

Several orderers run. The coordination service elects one of them; its fencing token is the **epoch**. Orders carry
epoch and version, and every replica delivers only what it reads back from the order topic. A new leader appends a
claim, reads the topic up to its own claim, and only then publishes: it then knows every order that counts, so
none is published twice (the paper's code does that) or lost, and what a fenced leader appends behind the claim
is void for every reader.

Batching (section IV): one order is in flight at a time and takes all that waits, at most `cap` inputs per
queue. Very recent inputs, those that appeared only in the last `recent` looks, are left for the next order, so
that a follower rarely waits for an input that has not reached it. An idle shard publishes at the first input, and
what was left over is flushed by the next looks: nothing waits longer than `recent` looks.

A leader that publishes nothing for `patience` looks while input waits is deposed by whoever notices; the patience
doubles with every complaint until an order comes, because it may be the log that is slow.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.liverobin import FOLLOWED, MAX_FAILURES, QUIET, AskEnds, Ends
from lockstep.order.merge import Position
from lockstep.order.pace import IDLE, Pace
from lockstep.order.records import Claim, Order, decode, encode
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

Runs: TypeAlias = tuple[tuple[int, int], ...]
Policy: TypeAlias = Callable[[Sequence[int]], Runs]
"""How a leader orders what waits: waiting inputs per queue to runs of (queue, count)."""
MAX_PATIENCE = 16
"""The patience grows to at most so many times itself."""


def in_turn(waiting: Sequence[int]) -> Runs:
    """The default policy: each queue's waiting inputs, queue after queue."""
    return tuple((queue, count) for queue, count in enumerate(waiting) if count)


def by_priority(*first: int) -> Policy:
    """Empty the queues named in `first`, in that order, before all others (section VI)."""

    def policy(waiting: Sequence[int]) -> Runs:
        others = [queue for queue in range(len(waiting)) if queue not in first]
        return tuple((queue, waiting[queue]) for queue in (*first, *others) if waiting[queue])

    return policy


def in_slices(size: int) -> Policy:
    """At most `size` inputs of one queue, then the next queue's: a long queue does not hold up the others."""

    def policy(waiting: Sequence[int]) -> Runs:
        left = list(waiting)
        runs: list[tuple[int, int]] = []
        while any(left):
            for queue, count in enumerate(left):
                if count:
                    runs.append((queue, min(size, count)))
                    left[queue] -= runs[-1][1]
        return tuple(runs)

    return policy


class Elected(msgspec.Struct, frozen=True, tag=True):
    """The coordination service says that this orderer leads; `epoch` is its fencing token."""

    epoch: int


class Deposed(msgspec.Struct, frozen=True, tag=True):
    """The coordination service says, or fears, that this orderer leads no more."""


class Depose(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: the leader of `epoch` is silent while input waits; have another one elected."""

    epoch: int


class Leads(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: the claim of `epoch` counts. `mine`: it is this orderer's own."""

    epoch: int
    by: str
    mine: bool


class Outranked(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: our claim of `epoch` is void, the topic has seen one of `seen` before."""

    epoch: int
    seen: int


class Orderer(Machine):
    """One orderer of one shard: follower, claiming, or leading.

    `position` is where to begin to read a topic whose beginning was trimmed away; without it the run's own
    beginning, `starts`."""

    acceptance_class: type[Acceptance] = Acceptance

    def __init__(
        self,
        name: str,
        topic: str,
        shard: int,
        starts: tuple[int, ...],
        *,
        period: float = 0.002,
        idle: float = IDLE,
        cap: int = 1000,
        recent: int = 1,
        patience: int = 100,
        policy: Policy = in_turn,
        position: Position | None = None,
    ) -> None:
        self._name = name
        self._topic = topic
        self._shard = shard
        self._pace = Pace(period, idle=idle)
        self._cap = cap
        self._patience = patience
        self._policy = policy
        self._order_offset = 0
        self._accepted = self.acceptance_class(len(starts), ends=starts)
        if position is not None:
            self._order_offset = position.order_offset
            self._accepted = self.acceptance_class(
                len(starts), position.ends, position.epoch, position.version
            )
            starts = position.inputs
        self._ordered = list(starts)
        self._seen: deque[tuple[int, ...]] = deque([starts] * (recent + 1), maxlen=recent + 1)
        self._epoch = 0
        self._claimed = False
        self._in_flight: Order | None = None
        self._again: Claim | Order | None = None
        self._failures = 0
        self._silent = 0
        self._complaints = 0
        self._heard = False
        self._passed = 0

    @property
    def leads(self) -> bool:
        """Whether this orderer may publish: it has read back its own claim and none above it."""
        return self._claimed and self._accepted.epoch == self._epoch

    @property
    def _waits(self) -> bool:
        """Whether there is input that nobody has ordered."""
        return any(end > done for end, done in zip(self._seen[-1], self._ordered, strict=True))

    @property
    def void(self) -> int:
        """Records of the order topic that did not count."""
        return self._accepted.void

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return (Subscribe(self._topic, self._shard, self._order_offset), self._look())

    def on_timer(self, name: str) -> Effects:
        if not self._waits:  # else a silent leader would be noticed the later the longer it is silent
            self._pace.rested()
        again, self._again = self._again, None
        if again is not None:
            yield self._append(again)
        heard, self._heard = self._heard, False
        if heard and not self._claimed and self._passed < FOLLOWED - 1:
            self._passed += 1
            yield SetTimer("look", max(QUIET, self._pace.pause))
        else:
            self._passed = 0
            yield self._look()
            yield Deliver(AskEnds())

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        match command:
            case Elected(epoch=epoch) if epoch > self._epoch:
                self._step_back()
                self._epoch = epoch
                yield self._append(Claim(epoch, self._name))
                yield Deliver(AskEnds())
            case Deposed():
                self._step_back()
            case Ends() if len(command.ends) == self._accepted.queues:
                yield from self._looked(command)
        yield Reply(client, request, None)

    def on_record(self, record: LogRecord) -> Effects:
        decoded = decode(record.value or b"")
        match self._accepted.accept(decoded):
            case Claim(epoch=epoch, by=by):
                self._claimed = epoch == self._epoch and by == self._name
                self._decided()
                self._silent = 0
                yield Deliver(Leads(epoch, by, self._claimed))
                if self._claimed:  # nobody has ordered for a while: nothing that waits is recent
                    self._seen.extend([self._seen[-1]] * len(self._seen))
                    yield from self._moved()
                    yield from self._publish()
            case Order(runs=runs):
                for queue, count in runs:
                    self._ordered[queue] += count
                self._silent, self._complaints = 0, 0
                self._heard = True
                self._decided()
                yield from self._moved()
                yield from self._publish()
            case None:
                match decoded:
                    case Claim(epoch=epoch, by=self._name) if epoch == self._epoch < self._accepted.epoch:
                        yield Deliver(Outranked(epoch, self._accepted.epoch))

    def on_appended(self, token: Token, offset: int) -> Effects:
        self._failures = 0
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """It may stand in the topic or not: the very same record again, at the next look, is void if it does."""
        self._failures += 1
        if self._failures > MAX_FAILURES:
            return (Halt(f"the log took none of {MAX_FAILURES} records: {reason}"),)
        match token:
            case Claim(epoch=epoch) if epoch == self._epoch and not self._claimed:
                self._again = token
            case Order() if token == self._in_flight:
                self._again = token
        return ()

    def _decided(self) -> None:
        """What we had sent to order is decided. Our own claim is not before it, or one above it, was read."""
        self._in_flight = None
        if not (isinstance(self._again, Claim) and self._accepted.epoch < self._epoch):
            self._again = None

    def _step_back(self) -> None:
        self._claimed = False
        self._in_flight, self._again = None, None

    def _looked(self, ends: Ends) -> Effects:
        before = self._seen[-1]
        known = ends.over(before)
        if list(before) == self._ordered:  # idle: what comes now need not wait for more
            self._seen.extend([known] * len(self._seen))
        else:
            self._seen.append(known)
        if known != before:
            yield from self._moved()
        if self.leads:
            yield from self._publish()
            return
        self._silent = self._silent + 1 if self._waits else 0
        if self._silent >= self._patience * min(MAX_PATIENCE, 1 << self._complaints):
            self._silent = 0
            self._complaints = min(self._complaints + 1, 30)
            yield Deliver(Depose(self._accepted.epoch))

    def _publish(self) -> Effects:
        if not self.leads or self._in_flight is not None:
            return ()
        waiting = [
            min(self._cap, max(0, ripe - done))
            for ripe, done in zip(self._seen[0], self._ordered, strict=True)
        ]
        runs = self._policy(waiting)
        if not runs:
            return ()
        self._in_flight = Order(self._epoch, self._accepted.version + 1, runs)
        return (self._append(self._in_flight),)

    def _append(self, record: Claim | Order) -> Effect:
        return Append(self._topic, self._shard, encode(record), token=record)

    def _moved(self) -> Effects:
        return (self._look(),) if self._pace.moved() else ()

    def _look(self) -> Effect:
        return SetTimer("look", self._pace.pause)
