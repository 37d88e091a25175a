"""KaZoo's orderer (section IV): claims, versions, batching, take-over and fencing, step by step."""

from collections import deque

from lockstep.order.kazoo import Depose, Deposed, Elected, Orderer, by_priority
from lockstep.order.liverobin import Ends
from lockstep.order.merge import Merge
from lockstep.order.records import Claim, Order, decode
from lockstep.protocol.machine import Append, Deliver, Effects, LogRecord


class Topic:
    """The order topic by hand: appended values wait in `late` until a test lets them land."""

    def __init__(self, *orderers: Orderer) -> None:
        self.orderers = orderers
        self.values: list[bytes] = []
        self.late: deque[bytes] = deque()

    def take(self, effects: Effects) -> list[object]:
        delivered: list[object] = []
        for effect in effects:
            match effect:
                case Append(value=value) if value is not None:
                    self.late.append(value)
                case Deliver(item=item):
                    delivered.append(item)
        return delivered

    def settle(self) -> None:
        """Let everything land, and everything that this causes."""
        while self.late:
            self.land(self.late.popleft())

    def land(self, value: bytes) -> None:
        self.values.append(value)
        record = LogRecord("order", 0, len(self.values) - 1, 0, None, value)
        for orderer in self.orderers:
            self.take(orderer.on_record(record))

    def records(self) -> list[object]:
        return [decode(value) for value in self.values]

    def merged(self) -> list[tuple[int, int]]:
        merge = Merge((0, 0))
        for offset, value in enumerate(self.values):
            merge.follow(offset, decode(value))
        return [(one.queue, one.offset) for one in merge.take(10_000)]


def orderers(count: int = 2, **options: object) -> tuple[Topic, list[Orderer]]:
    made = [Orderer(f"orderer-{n}", "order", 0, (0, 0), **options) for n in range(count)]  # type: ignore[arg-type]
    return Topic(*made), made


def test_a_leader_publishes_only_after_it_has_read_back_its_claim() -> None:
    topic, (leader, _) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.take(leader.on_command("", 0, Ends((3, 1))))
    assert not leader.leads
    assert [decode(value) for value in topic.late] == [Claim(1, "orderer-0")]
    topic.settle()
    assert leader.leads


def test_what_waits_is_ordered_once_and_in_one_batch() -> None:
    topic, (leader, follower) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.settle()
    for _ in range(3):
        topic.take(leader.on_command("", 0, Ends((3, 1))))
        topic.settle()
    assert topic.records()[1:] == [Order(1, 1, ((0, 3), (1, 1)))]
    assert not follower.leads


def test_what_appeared_only_in_the_latest_look_is_left_for_the_next_order() -> None:
    topic, (leader, _) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(leader.on_command("", 0, Ends((3, 0))))  # idle before: published at once
    topic.take(leader.on_command("", 0, Ends((5, 0))))  # busy: the two new ones are too recent
    topic.settle()
    assert topic.records()[1:] == [Order(1, 1, ((0, 3),))]
    topic.take(leader.on_command("", 0, Ends((6, 0))))
    topic.settle()
    assert topic.records()[2:] == [Order(1, 2, ((0, 2),))]


def test_a_batch_takes_at_most_the_cap_of_each_queue() -> None:
    topic, (leader, _) = orderers(cap=10)
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(leader.on_command("", 0, Ends((25, 4))))
    topic.settle()
    assert [record.runs for record in topic.records()[1:]] == [  # type: ignore[attr-defined]
        ((0, 10), (1, 4)),
        ((0, 10),),
        ((0, 5),),
    ]


def test_priorities_put_the_urgent_input_first() -> None:
    assert by_priority(1)([5, 2]) == ((1, 2), (0, 5))


def test_a_new_leader_neither_repeats_nor_loses_orders_that_were_published_but_unread() -> None:
    """The published code of the paper repeats them (figures/README.md)."""
    topic, (old, new) = orderers()
    topic.take(old.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(old.on_command("", 0, Ends((3, 1))))  # in flight: nobody has read it
    topic.take(new.on_command("", 0, Ends((3, 1))))
    topic.take(new.on_command("", 0, Elected(2)))
    topic.settle()
    topic.take(new.on_command("", 0, Ends((3, 2))))
    topic.take(new.on_command("", 0, Ends((3, 2))))
    topic.settle()
    assert sorted(topic.merged()) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_a_zombie_leaders_late_append_is_void_for_every_reader() -> None:
    topic, (old, new) = orderers()
    topic.take(old.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(old.on_command("", 0, Ends((3, 0))))
    zombie = topic.late.popleft()
    topic.take(new.on_command("", 0, Ends((3, 0))))
    topic.take(new.on_command("", 0, Elected(2)))
    topic.settle()
    topic.land(zombie)
    topic.settle()
    topic.take(new.on_command("", 0, Ends((3, 0))))
    topic.settle()
    assert sorted(topic.merged()) == [(0, 0), (0, 1), (0, 2)]
    assert not old.leads
    assert new.leads


def test_an_append_of_unknown_outcome_is_said_again_with_its_own_version() -> None:
    topic, (leader, _) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(leader.on_command("", 0, Ends((3, 0))))
    order = decode(topic.late[0])
    topic.take(leader.on_append_failed(order, "timed out"))
    topic.settle()  # both copies land
    assert sorted(topic.merged()) == [(0, 0), (0, 1), (0, 2)]


def test_a_leader_that_is_silent_while_input_waits_is_deposed() -> None:
    topic, (_, follower) = orderers(patience=3)
    delivered: list[object] = []
    for _ in range(3):
        delivered += topic.take(follower.on_command("", 0, Ends((1, 0))))
    assert delivered == [Depose(0)]


def test_a_deposed_leader_stops_publishing_at_once() -> None:
    topic, (leader, _) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(leader.on_command("", 0, Deposed()))
    topic.take(leader.on_command("", 0, Ends((9, 9))))
    assert not topic.late
