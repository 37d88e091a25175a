"""KaZoo's orderer (section IV): claims, versions, batching, take-over and fencing, step by step."""

from collections import deque

from lockstep.order.kazoo import (
    Depose,
    Deposed,
    Elected,
    Leads,
    Orderer,
    Outranked,
    by_priority,
    in_slices,
    in_turn,
)
from lockstep.order.liverobin import FOLLOWED, MAX_FAILURES, AskEnds, Ends
from lockstep.order.merge import Merge
from lockstep.order.records import Claim, Order, decode, encode
from lockstep.protocol.machine import Append, Deliver, Effects, Halt, LogRecord, SetTimer, Subscribe


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
    topic.take(leader.on_timer("look"))
    topic.settle()  # both copies land
    assert sorted(topic.merged()) == [(0, 0), (0, 1), (0, 2)]


def test_a_claim_that_the_log_did_not_take_is_said_again_though_older_records_are_read_meanwhile() -> None:
    topic, (old, new) = orderers()
    topic.take(new.on_command("", 0, Elected(2)))
    claim = decode(topic.late.popleft())  # lost
    topic.take(new.on_append_failed(claim, "not available"))
    topic.take(old.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(old.on_command("", 0, Ends((1, 0))))
    topic.settle()
    assert not new.leads
    topic.take(new.on_timer("look"))
    topic.settle()
    assert new.leads


def test_a_leader_that_is_silent_while_input_waits_is_deposed() -> None:
    topic, (_, follower) = orderers(patience=3)
    delivered: list[object] = []
    for _ in range(3):
        delivered += topic.take(follower.on_command("", 0, Ends((1, 0))))
    assert delivered == [Depose(0)]


def test_looks_stay_frequent_while_input_waits_though_nothing_more_comes() -> None:
    """Patience is counted in looks: it would last as much longer as the pauses between them grow."""
    _, (_, follower) = orderers(period=0.002)

    def pause() -> float:
        (found,) = (effect.after for effect in follower.on_timer("look") if isinstance(effect, SetTimer))
        return found

    def look(end: int) -> None:
        list(follower.on_command("", 0, Ends((end, 0))))

    look(1)
    for _ in range(5000):
        assert pause() == 0.002
        look(1)
    list(follower.on_record(LogRecord("order", 0, 0, 0, None, encode(Claim(1, "orderer-0")))))
    list(follower.on_record(LogRecord("order", 0, 1, 0, None, encode(Order(1, 1, ((0, 1),))))))
    assert max(pause() for _ in range(5000)) > 0.1, "what was ordered does not wait"


def test_a_deposed_leader_stops_publishing_at_once() -> None:
    topic, (leader, _) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    topic.settle()
    topic.take(leader.on_command("", 0, Deposed()))
    topic.take(leader.on_command("", 0, Ends((9, 9))))
    assert not topic.late


def test_a_long_queue_does_not_hold_up_the_others_when_orders_are_sliced() -> None:
    assert in_slices(2)([5, 1]) == ((0, 2), (1, 1), (0, 2), (0, 1))
    assert in_slices(2)([0, 0]) == ()


def test_everything_that_waits_is_ordered_whatever_the_policy() -> None:
    for policy in (in_turn, by_priority(1), in_slices(3)):
        counts = [0, 0, 0]
        for queue, count in policy([7, 0, 4]):
            counts[queue] += count
        assert counts == [7, 0, 4]


def test_a_priority_goes_into_the_published_orders() -> None:
    topic, (leader, _) = orderers(policy=by_priority(1))
    lead(topic, leader)
    topic.take(leader.on_command("", 0, Ends((3, 2))))
    topic.settle()
    assert topic.records()[1:] == [Order(1, 1, ((1, 2), (0, 3)))]


def test_how_recent_an_input_may_be_is_configurable_and_nothing_is_left_over() -> None:
    topic, (leader, _) = orderers(recent=3)
    lead(topic, leader)
    topic.take(leader.on_command("", 0, Ends((1, 0))))
    topic.settle()
    topic.take(leader.on_command("", 0, Ends((1, 0))))
    topic.take(leader.on_command("", 0, Ends((2, 0))))  # idle again: at once
    for ends in ((3, 0), (4, 0), (4, 0)):
        topic.take(leader.on_command("", 0, Ends(ends)))
    topic.settle()
    ordered = sum(count for record in topic.records()[1:] for _, count in record.runs)  # type: ignore[attr-defined]
    assert ordered == 2
    for _ in range(3):
        topic.take(leader.on_command("", 0, Ends((4, 0))))
        topic.settle()
    assert topic.merged() == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_new_leader_orders_what_waits_as_soon_as_its_claim_is_read_back() -> None:
    topic, (_, new) = orderers()
    topic.take(new.on_command("", 0, Ends((2, 0))))
    topic.take(new.on_command("", 0, Ends((3, 1))))
    effects = list(new.on_command("", 0, Elected(1)))
    assert Deliver(AskEnds()) in effects, "it looks at once"
    topic.take(effects)
    topic.settle()
    assert topic.records() == [Claim(1, "orderer-1"), Order(1, 1, ((0, 3), (1, 1)))]


def test_patience_doubles_with_every_complaint_until_an_order_comes() -> None:
    """It may be the log that is slow: then one deposition after the other helps nobody."""
    topic, (leader, follower) = orderers(patience=3)

    def looks_until_complaint() -> int:
        for look in range(1, 1000):
            if topic.take(follower.on_command("", 0, Ends((1, 0)))):
                return look
        return 0

    assert [looks_until_complaint() for _ in range(6)] == [3, 6, 12, 24, 48, 48]
    lead(topic, leader)
    topic.take(leader.on_command("", 0, Ends((1, 0))))
    topic.settle()
    for look in range(1, 4):
        assert bool(topic.take(follower.on_command("", 0, Ends((2, 0))))) == (look == 3)


def test_a_claim_below_what_the_topic_has_seen_is_reported() -> None:
    """The coordination service was set up anew: its tokens begin again, and no claim would ever count."""
    topic, (old, new) = orderers()
    topic.take(old.on_command("", 0, Elected(9)))
    topic.settle()
    topic.take(new.on_command("", 0, Elected(2)))
    record = LogRecord("order", 0, 1, 0, None, topic.late.popleft())
    assert topic.take(new.on_record(record)) == [Outranked(2, 9)]
    assert topic.take(old.on_record(record)) == []
    assert old.leads


def test_the_host_is_told_whose_claim_counts() -> None:
    topic, (leader, follower) = orderers()
    topic.take(leader.on_command("", 0, Elected(1)))
    record = LogRecord("order", 0, 0, 0, None, topic.late.popleft())
    assert topic.take(leader.on_record(record)) == [Leads(1, "orderer-0", True)]
    assert topic.take(follower.on_record(record)) == [Leads(1, "orderer-0", False)]


def test_a_follower_that_reads_orders_looks_only_now_and_then() -> None:
    topic, (leader, follower) = orderers()
    lead(topic, leader)
    looks = 0
    for number in range(1, 5 * FOLLOWED + 1):
        topic.take(leader.on_command("", 0, Ends((number, 0))))
        topic.settle()
        looks += Deliver(AskEnds()) in list(follower.on_timer("look"))
        assert Deliver(AskEnds()) in list(leader.on_timer("look"))
    assert looks == 5


def test_an_orderer_begins_where_a_trimmed_topic_begins() -> None:
    topic, (leader, _) = orderers()
    lead(topic, leader)
    merge = Merge((0, 0))
    for ends in ((3, 1), (5, 1), (5, 4)):
        for _ in range(2):
            topic.take(leader.on_command("", 0, Ends(ends)))
        topic.settle()
    for offset, value in enumerate(topic.values):
        merge.follow(offset, decode(value))
    merge.take(5)
    position = merge.position()
    assert 0 < position.order_offset < len(topic.values)
    new = Orderer("new", "order", 0, (0, 0), position=position)
    assert Subscribe("order", 0, position.order_offset) in list(new.on_start(()))
    topic.orderers = (leader, new)
    for offset in range(position.order_offset, len(topic.values)):
        list(new.on_record(LogRecord("order", 0, offset, 0, None, topic.values[offset])))
    topic.take(new.on_command("", 0, Elected(2)))
    topic.settle()
    for _ in range(2):
        topic.take(new.on_command("", 0, Ends((6, 4))))
        topic.settle()
    merged = topic.merged()
    assert sorted(merged) == [(0, n) for n in range(6)] + [(1, n) for n in range(4)]


def test_an_orderer_whose_log_never_takes_anything_ends_itself() -> None:
    _, (leader, _) = orderers()
    for _ in range(MAX_FAILURES):
        assert not list(leader.on_append_failed(None, "fenced"))
    assert isinstance(next(iter(leader.on_append_failed(None, "fenced"))), Halt)


def lead(topic: Topic, orderer: Orderer) -> None:
    topic.take(orderer.on_command("", 0, Elected(1)))
    topic.settle()


def test_records_that_somebody_else_writes_are_void_and_counted_and_the_order_goes_on() -> None:
    topic, (leader, follower) = orderers()
    lead(topic, leader)
    for value in (b"", b"{}", b"not json", encode(Order(7, 1, ((0, 9),))), encode(Order(1, 1, ((5, 1),)))):
        topic.land(value)
    topic.take(leader.on_command("", 0, Ends((2, 1))))
    topic.settle()
    assert leader.void == follower.void == 5
    assert sorted(topic.merged()) == [(0, 0), (0, 1), (1, 0)]
