"""Which order records count: decided by the prefix of the order topic alone, so all readers agree.

- **Cuts** count as the pointwise maximum with the one before: several generators may be active, and a late or
  repeated cut is harmless. A cut that moves nothing is void (an empty cycle of Algorithm 1 changes nothing).
- **Claims** open a higher epoch. **Orders** count if they carry the epoch of the last accepted claim and the
  version after the last accepted order: so an order that was appended twice, a zombie leader's late append,
  and an order that a new leader has already replaced are all void, for every reader alike.
- **Skips** count once per input.

Void records are counted, and shown by `lockstep run`, because someone may be writing to our topic.
"""

from dataclasses import dataclass, field, replace

from lockstep.order.records import Claim, Cut, Order, OrderRecord, Skip


@dataclass
class Acceptance:
    """The state that decides on the next record. `queues` is the number of inputs of the shard."""

    queues: int
    ends: tuple[int, ...] = ()
    epoch: int = 0
    version: int = 0
    skipped: set[tuple[int, int]] = field(default_factory=set)
    void: int = 0

    def __post_init__(self) -> None:
        if not self.ends:
            self.ends = (0,) * self.queues

    def accept(self, record: OrderRecord | None) -> OrderRecord | None:
        """The record as it counts (a cut is returned as the maximum), or None if it is void."""
        accepted = self._decide(record)
        if accepted is None:
            self.void += 1
        return accepted

    def _decide(self, record: OrderRecord | None) -> OrderRecord | None:
        match record:
            case Cut(ends=ends) if len(ends) == self.queues:
                highest = tuple(max(pair) for pair in zip(self.ends, ends, strict=True))
                if highest == self.ends:
                    return None
                self.ends = highest
                return Cut(highest, record.by)
            case Claim(epoch=epoch) if epoch > self.epoch:
                self.epoch = epoch
                return record
            case Order(epoch=epoch, version=version, runs=runs) if (
                epoch == self.epoch > 0 and version == self.version + 1 and self._well_formed(runs)
            ):
                self.version = version
                return record
            case Skip(queue=queue, offset=offset) if (
                0 <= queue < self.queues and offset >= 0 and (queue, offset) not in self.skipped
            ):
                self.skipped.add((queue, offset))
                return record
        return None

    def _well_formed(self, runs: tuple[tuple[int, int], ...]) -> bool:
        return all(0 <= queue < self.queues and count > 0 for queue, count in runs)

    def copy(self) -> "Acceptance":
        return replace(self, skipped=set(self.skipped))
