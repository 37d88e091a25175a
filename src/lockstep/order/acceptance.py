"""Which order records count: decided by the prefix of the order topic alone, so all readers agree.

- **Cuts** count as the pointwise maximum with the one before: several generators may be active, and a late or
  repeated cut is harmless. A cut that moves nothing is void (an empty cycle of Algorithm 1 changes nothing).
  A cut may name queues that were **added** to those that the run began with. It counts if its list begins the
  list of all cuts before (the ends of queues that it does not know stay), or goes on behind it: then these
  queues are there from this cut on. Of two lists that contradict each other the first one counts.
- **Claims** open a higher epoch. **Orders** count if they carry the epoch of the last accepted claim and the
  version after the last accepted order: so an order that was appended twice, a zombie leader's late append,
  and an order that a new leader has already replaced are all void, for every reader alike.
- **Skips** count once per input.

Void records are counted, and shown by `lockstep run`, because someone may be writing to our topic.
"""

from dataclasses import dataclass, field, replace

from lockstep.order.records import MAX_QUEUES, Claim, Cut, Order, OrderRecord, Queue, Skip


@dataclass
class Acceptance:
    """The state that decides on the next record. `queues` is the number of inputs that the run began with.

    `growing`: those of them whose topics may grow; `added`: what was added so far.
    """

    queues: int
    ends: tuple[int, ...] = ()
    epoch: int = 0
    version: int = 0
    skipped: set[tuple[int, int]] = field(default_factory=set)
    void: int = 0
    growing: frozenset[Queue] = frozenset()
    added: tuple[Queue, ...] = ()

    def __post_init__(self) -> None:
        if not self.ends:
            self.ends = (0,) * (self.queues + len(self.added))

    def accept(self, record: OrderRecord | None) -> OrderRecord | None:
        """The record as it counts (a cut is returned as the maximum), or None if it is void."""
        accepted = self._decide(record)
        if accepted is None:
            self.void += 1
        return accepted

    def _decide(self, record: OrderRecord | None) -> OrderRecord | None:
        match record:
            case Cut(ends=ends, added=added) if len(ends) == self.queues + len(added):
                known = len(self.added)
                if added[:known] != self.added[: len(added)] or not self._admits(added):
                    return None
                before = self.ends + (0,) * (len(added) - known)
                highest = tuple(map(max, before, ends)) + before[len(ends) :]
                if highest == self.ends:
                    return None
                self.ends = highest
                self.added = max(self.added, added, key=len)
                return Cut(highest, record.by, self.added)
            case Claim(epoch=epoch) if epoch > self.epoch:
                self.epoch = epoch
                return record
            case Order(epoch=epoch, version=version, runs=runs) if (
                epoch == self.epoch > 0 and version == self.version + 1 and self._well_formed(runs)
            ):
                self.version = version
                return record
            case Skip(queue=queue, offset=offset) if (
                0 <= queue < len(self.ends) and offset >= 0 and (queue, offset) not in self.skipped
            ):
                self.skipped.add((queue, offset))
                return record
        return None

    def _well_formed(self, runs: tuple[tuple[int, int], ...]) -> bool:
        return all(0 <= queue < len(self.ends) and count > 0 for queue, count in runs)

    def _admits(self, added: tuple[Queue, ...]) -> bool:
        """Whether what stands behind the known list is new, of a topic that may grow, and not too much."""
        more = added[len(self.added) :]
        if not more:
            return True
        topics = {topic for topic, _ in self.growing}
        return (
            len(set(added)) == len(added)
            and self.queues + len(added) <= MAX_QUEUES
            and all(queue[0] in topics and queue not in self.growing for queue in more)
        )

    def copy(self) -> "Acceptance":
        return replace(self, skipped=set(self.skipped))
