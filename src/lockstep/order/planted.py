"""Planted bugs of both orders: proof that the checkers of `simulation.py` can see.

They are subclasses that only the simulation uses, so that the real classes carry no switches.
"""

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.kazoo import Orderer
from lockstep.order.liverobin import Grown
from lockstep.order.merge import Input, Merge, Position
from lockstep.order.records import Cut, Order, OrderRecord, Queue
from lockstep.order.replica import Replica
from lockstep.protocol.machine import ClientId, Deliver, Effects, LogRecord, Message, NodeId, Send


class CutAsIs(Acceptance):
    """Planted: a cut counts as it stands, also when it lies behind the one before."""

    def _decide(self, record: OrderRecord | None) -> OrderRecord | None:
        match record:
            case Cut(ends=ends, added=self.added) if len(ends) == len(self.ends) and ends != self.ends:
                self.ends = ends
                return record
        return super()._decide(record)


class AnyEpoch(Acceptance):
    """Planted: the epoch of an order is not looked at."""

    def _decide(self, record: OrderRecord | None) -> OrderRecord | None:
        match record:
            case Order(version=version) if version == self.version + 1:
                self.version = version
                return record
        return super()._decide(record)


class NoVersions(Acceptance):
    """Planted: orders carry no version, as in the code that the paper's authors published."""

    def _decide(self, record: OrderRecord | None) -> OrderRecord | None:
        match record:
            case Order(epoch=epoch) if epoch == self.epoch:
                return record
        return super()._decide(record)


class MergeCutAsIs(Merge):
    acceptance_class = CutAsIs

    def _begin(self) -> None:
        ends = self._pending[0][1].ends
        self.inputs = [min(at, end) for at, end in zip(self.inputs, ends, strict=True)]
        super()._begin()


class MergeAnyEpoch(Merge):
    acceptance_class = AnyEpoch


class MergeNoVersions(Merge):
    acceptance_class = NoVersions


class MergeNextReset(Merge):
    """Planted: `next` is the first queue again after a restart."""

    @classmethod
    def at(cls, position: Position, growing: frozenset[Queue] = frozenset()) -> "Merge":
        return super().at(msgspec.structs.replace(position, next=0), growing)


class ReplicaCutAsIs(Replica):
    merge_class = MergeCutAsIs


class ReplicaAnyEpoch(Replica):
    merge_class = MergeAnyEpoch


class ReplicaNoVersions(Replica):
    merge_class = MergeNoVersions


class ReplicaNextReset(Replica):
    merge_class = MergeNextReset


class ReplicaByArrival(Replica):
    """Planted: within a cut, whichever input has arrived goes first."""

    def _deliver(self) -> Effects:
        merge = self._merge
        for queue, end in enumerate(merge.accepted.ends):
            while merge.inputs[queue] < min(end, self._arrived[queue]):
                yield Deliver(Input(queue, merge.inputs[queue], merge.sn))
                merge.inputs[queue] += 1
                merge.sn += 1


class ReplicaGrownByArrival(Replica):
    """Planted: a queue takes part from when its partition was found here, not from the cut that admits it."""

    def on_command(self, client: ClientId, request: int, command: Message) -> Effects:
        accepted = self._merge.accepted
        if not isinstance(command, Grown) or self._merge._pending:
            return ()
        found = tuple(queue for queue in command.queues if queue not in accepted.added)
        accepted.added += found
        accepted.ends += (0,) * len(found)
        self._merge.inputs += [0] * len(found)
        return tuple(self._admit())

    def on_record(self, record: LogRecord) -> Effects:
        accepted = self._merge.accepted
        if (queue := (record.topic, record.partition)) in accepted.added:
            ends = list(accepted.ends)
            ends[accepted.queues + accepted.added.index(queue)] = record.offset + 1
            self._merge.follow(self._merge._read - 1, Cut(tuple(ends), added=accepted.added))
        return super().on_record(record)


class ReplicaTold(Replica):
    """Planted: the leader's own replica follows an order before it has been read back."""

    def on_message(self, sender: NodeId, message: Message) -> Effects:
        if isinstance(message, Order):
            self._merge.follow(0, message)
        return self._deliver()


class OrdererNoVersions(Orderer):
    """Planted: a new leader publishes before it has read back its claim."""

    acceptance_class = NoVersions

    @property
    def leads(self) -> bool:
        return self._epoch >= self._accepted.epoch > 0


class OrdererTelling(Orderer):
    def _publish(self) -> Effects:
        for effect in super()._publish():
            yield effect
            if self._in_flight is not None:
                yield Send("site-1", self._in_flight)


GROWING = ("grown-by-arrival",)
TRIMMING = ("trimmed-too-far", "position-forgotten")
REPLICAS: dict[str, type[Replica]] = {
    "cut-not-monotone": ReplicaCutAsIs,
    "tie-by-arrival": ReplicaByArrival,
    "next-reset": ReplicaNextReset,
    "grown-by-arrival": ReplicaGrownByArrival,
    "published-twice": ReplicaNoVersions,
    "zombie-append": ReplicaAnyEpoch,
    "before-read-back": ReplicaTold,
}
ORDERERS: dict[str, type[Orderer]] = {
    "published-twice": OrdererNoVersions,
    "before-read-back": OrdererTelling,
}
