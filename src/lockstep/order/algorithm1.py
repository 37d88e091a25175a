"""Algorithm 1 of the paper, to the letter: the oracle of every merge in this package.

Section V-B, lines 1 to 24. It works on queues that hold events and heartbeats in band, and calls out for
each event that the task processes and each heartbeat that it propagates. Kept slow and literal on purpose;
line numbers of the paper stand beside the code. Queues count from 0 here, from 1 there.

Line 15 belongs to the reception of any heartbeat, not only to the first of its number: the prose of section
V-B says so, and otherwise a queue whose heartbeat is not the first would never leave the cycle.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Heartbeat:
    sequence: int


@dataclass(frozen=True)
class Event:
    queue: int
    offset: int


Item: TypeAlias = Heartbeat | Event


class Algorithm1:
    """One replica. Feed `queues`; `run` yields what comes out until the next dequeue would block."""

    def __init__(self, queues: int) -> None:
        self.queues: list[deque[Item]] = [deque() for _ in range(queues)]
        self.next = 0  # line 6
        self.highest = 0  # line 7, "gen"
        self.active = set(range(queues))  # line 8

    def leave(self, sequence: int) -> None:
        """The queue whose turn it is has its heartbeat."""
        self.active.discard(self.next)  # line 15
        if not self.active:  # line 16
            self.active = set(range(len(self.queues)))  # line 17

    def run(self) -> Iterator[Item]:
        while self.queues[self.next]:  # line 10 blocks where this ends
            item = self.queues[self.next].popleft()
            match item:
                case Heartbeat(sequence):  # line 11
                    if sequence > self.highest:  # line 12
                        yield item  # line 13
                        self.highest = sequence  # line 14
                    self.leave(sequence)
                case Event():
                    yield item  # line 19
            if self.next >= max(self.active):  # line 20
                self.next = min(self.active)  # line 21
            else:
                self.next = min(queue for queue in self.active if queue > self.next)  # line 23


class Algorithm1WithGaps(Algorithm1):
    """Where heartbeats may be missing: one takes its queue out of all cycles up to its number, not of one only."""

    def __init__(self, queues: int) -> None:
        super().__init__(queues)
        self.last = [0] * queues

    def leave(self, sequence: int) -> None:
        self.last[self.next] = sequence
        cycle = min(self.last)
        self.active = {queue for queue, last in enumerate(self.last) if last == cycle}
