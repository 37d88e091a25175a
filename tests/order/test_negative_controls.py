"""Section V-A: why the obvious merges do not do. Each shows the failure that LiveRobin avoids."""

from collections import deque
from dataclasses import dataclass
from random import Random

from lockstep.order.algorithm1 import Algorithm1, Event, Heartbeat


@dataclass(frozen=True)
class Stamped:
    """An event as Bias sees it: stamped by whichever upstream replica's copy arrived first."""

    queue: int
    offset: int
    stamp: float


def round_robin(queues: list[deque[Event]]) -> list[Event]:
    """Plain round robin: a dequeue blocks until the queue has an event."""
    out = []
    turn = 0
    while queues[turn]:
        out.append(queues[turn].popleft())
        turn = (turn + 1) % len(queues)
    return out


def bias(queues: list[deque[Stamped]]) -> list[tuple[int, int]]:
    """Bias: consume from the queue whose head has the lowest stamp."""
    out = []
    while all(queues):
        queue = min(queues, key=lambda one: (one[0].stamp, one[0].queue))
        head = queue.popleft()
        out.append((head.queue, head.offset))
    return out


def events(queue: int, count: int) -> deque[Event]:
    return deque(Event(queue, offset) for offset in range(count))


def test_plain_round_robin_stalls_when_one_input_falls_silent() -> None:
    queues = [events(0, 100), events(1, 3)]
    assert len(round_robin(queues)) == 7
    assert len(queues[0]) == 96, "these wait for a queue that may never speak again"


def test_heartbeats_end_that_stall() -> None:
    merge = Algorithm1(2)
    merge.queues[0].extend(events(0, 100))
    merge.queues[1].extend(events(1, 3))
    for queue in merge.queues:
        queue.append(Heartbeat(1))
    assert sum(isinstance(item, Event) for item in merge.run()) == 103


def test_bias_diverges_when_the_two_copies_of_an_event_carry_different_stamps() -> None:
    rng = Random(7)

    def replica() -> list[tuple[int, int]]:
        # Both replicas see the same events; which upstream copy comes first, hence the stamp, differs.
        return bias(
            [
                deque(Stamped(queue, offset, offset + rng.choice((0.1, 0.9))) for offset in range(20))
                for queue in range(2)
            ]
        )

    assert replica() != replica()


def test_no_order_diverges_as_soon_as_arrivals_interleave_differently() -> None:
    rng = Random(7)

    def replica() -> list[Event]:
        queues = [events(0, 20), events(1, 20)]
        out = []
        while any(queues):
            out.append(rng.choice([queue for queue in queues if queue]).popleft())
        return out

    assert replica() != replica()


def test_a_heartbeat_is_propagated_once_where_it_is_first_seen() -> None:
    """Section V-B: the first reception of a heartbeat, in any queue, sends it on; later ones do not."""
    merge = Algorithm1(3)
    for queue in merge.queues:
        queue.extend((Heartbeat(1), Heartbeat(2)))
    assert [item for item in merge.run() if isinstance(item, Heartbeat)] == [Heartbeat(1), Heartbeat(2)]
