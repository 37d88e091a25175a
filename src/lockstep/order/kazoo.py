"""KaZoo (section IV): a leader decides on the order of consumption and publishes it; all follow the topic.

The orderer runs beside every replica. The coordination service elects one of them; its fencing token is the
**epoch**. Orders carry epoch and version, and every replica, the leader's too, delivers only what it reads back
from the order topic. A new leader appends a claim, reads the topic up to its own claim, and only then publishes:
it then knows every order that counts, so none is published twice (the paper's code does that) or lost, and what
a fenced leader appends behind the claim is void for every reader.

Batching (section IV): one order is in flight at a time and takes all that waits, at most `cap` inputs per
queue; what appeared only in the latest look at the inputs is left for the next order, so that a follower rarely
waits for an input that has not reached it. An idle shard publishes at the first input.

A leader that publishes nothing for `patience` looks while input waits is deposed by whoever notices.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.liverobin import AskEnds, Ends
from lockstep.order.records import Claim, Order, decode, encode
from lockstep.protocol.machine import (
    Append,
    ClientId,
    Deliver,
    Effect,
    Effects,
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


def in_turn(waiting: Sequence[int]) -> Runs:
    """The default policy: each queue's waiting inputs, queue after queue."""
    return tuple((queue, count) for queue, count in enumerate(waiting) if count)


def by_priority(*first: int) -> Policy:
    """Empty the queues named in `first`, in that order, before all others (section VI)."""

    def policy(waiting: Sequence[int]) -> Runs:
        others = [queue for queue in range(len(waiting)) if queue not in first]
        return tuple((queue, waiting[queue]) for queue in (*first, *others) if waiting[queue])

    return policy


class Elected(msgspec.Struct, frozen=True, tag=True):
    """The coordination service says that this orderer leads; `epoch` is its fencing token."""

    epoch: int


class Deposed(msgspec.Struct, frozen=True, tag=True):
    """The coordination service says, or fears, that this orderer leads no more."""


class Depose(msgspec.Struct, frozen=True, tag=True):
    """Delivered to the host: the leader of `epoch` is silent while input waits; have another one elected."""

    epoch: int


class Orderer(Machine):
    """The orderer of one shard beside one replica: follower, claiming, or leading."""

    acceptance_class: type[Acceptance] = Acceptance

    def __init__(
        self,
        name: str,
        topic: str,
        shard: int,
        starts: tuple[int, ...],
        *,
        period: float = 0.002,
        cap: int = 1000,
        patience: int = 100,
        policy: Policy = in_turn,
    ) -> None:
        self._name = name
        self._topic = topic
        self._shard = shard
        self._period = period
        self._cap = cap
        self._patience = patience
        self._policy = policy
        self._accepted = self.acceptance_class(len(starts), ends=starts)
        self._ordered = list(starts)
        self._ends = starts
        self._ripe = starts
        self._epoch = 0
        self._claimed = False
        self._in_flight: Order | None = None
        self._silent = 0

    @property
    def leads(self) -> bool:
        """Whether this orderer may publish: it has read back its own claim and none above it."""
        return self._claimed and self._accepted.epoch == self._epoch

    def on_start(self, durable: Sequence[Message]) -> Effects:
        return (Subscribe(self._topic, self._shard), SetTimer("look", self._period))

    def on_timer(self, name: str) -> Effects:
        return (SetTimer("look", self._period), Deliver(AskEnds()))

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        match command:
            case Elected(epoch=epoch) if epoch > self._epoch:
                self._epoch, self._claimed, self._in_flight = epoch, False, None
                yield self._append(Claim(epoch, self._name))
            case Deposed():
                self._step_back()
            case Ends() if len(command.ends) == self._accepted.queues:
                yield from self._looked(command)
        yield Reply(client, request, None)

    def on_record(self, record: LogRecord) -> Effects:
        accepted = self._accepted.accept(decode(record.value or b""))
        match accepted:
            case Claim(epoch=epoch, by=by):
                self._claimed = epoch == self._epoch and by == self._name
                self._in_flight = None
            case Order(runs=runs):
                for queue, count in runs:
                    self._ordered[queue] += count
                self._silent = 0
                self._in_flight = None
                return self._publish()
        return ()

    def on_append_failed(self, token: Token, reason: str) -> Effects:
        """It may stand in the topic or not: the very same record again is void if it does."""
        match token:
            case Claim(epoch=epoch) if epoch == self._epoch and not self._claimed:
                return (self._append(token),)
            case Order() if token == self._in_flight:
                return (self._append(token),)
        return ()

    def _step_back(self) -> None:
        self._claimed = False
        self._in_flight = None

    def _looked(self, ends: Ends) -> Effects:
        idle = list(self._ends) == self._ordered
        known = ends.over(self._ends)
        self._ripe = known if idle else self._ends
        self._ends = known
        if self.leads:
            return self._publish()
        waiting = any(end > done for end, done in zip(self._ends, self._ordered, strict=True))
        self._silent = self._silent + 1 if waiting else 0
        if self._silent >= self._patience:
            self._silent = 0
            return (Deliver(Depose(self._accepted.epoch)),)
        return ()

    def _publish(self) -> Effects:
        if not self.leads or self._in_flight is not None:
            return ()
        waiting = [
            min(self._cap, max(0, ripe - done)) for ripe, done in zip(self._ripe, self._ordered, strict=True)
        ]
        runs = self._policy(waiting)
        if not runs:
            return ()
        self._in_flight = Order(self._epoch, self._accepted.version + 1, runs)
        return (self._append(self._in_flight),)

    def _append(self, record: Claim | Order) -> Effect:
        return Append(self._topic, self._shard, encode(record), token=record)
