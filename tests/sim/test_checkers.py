"""Every checker accepts good histories and names what is wrong in bad ones; all written by hand."""

from typing import Any

import pytest

from lockstep.sim.checkers.acyclic import ACYCLIC_ORDER, acyclic_order
from lockstep.sim.checkers.linearizable import LINEARIZABLE, UNDECIDED, linearizable
from lockstep.sim.checkers.order import (
    EXACTLY_ONCE,
    NO_GAP,
    PREFIX_AGREEMENT,
    SAME_ORDER,
    exactly_once,
    no_gap,
    prefix_agreement,
    same_order,
)
from lockstep.sim.checkers.progress import (
    EVENTUAL_ANSWER,
    EVENTUAL_DELIVERY,
    eventual_answer,
    eventual_delivery,
)
from lockstep.sim.history import Operation, Violation
from lockstep.sim.replog.scenario import one_copy

from .histories import delivered, get, put, swap


class TestSameOrder:
    def test_holds_when_replicas_deliver_different_parts_of_one_order(self) -> None:
        assert not list(same_order([delivered("a", 1, 2, 4), delivered("b", 2, 3, 4), delivered("c")]))

    def test_sees_two_items_the_other_way_round(self) -> None:
        (found,) = same_order([delivered("a", 1, 2, 3), delivered("b", 1, 3, 2)])
        assert found.promise == SAME_ORDER
        assert found.detail == "a delivers 2 before 3, b the other way round"

    def test_sees_a_swap_across_a_distance(self) -> None:
        assert list(same_order([delivered("a", 1, 2, 3, 4), delivered("b", 4, 1)]))


class TestPrefixAgreement:
    def test_holds_for_prefixes_of_one_sequence(self) -> None:
        assert not list(prefix_agreement([delivered("a", 1, 2, 3), delivered("b", 1, 2), delivered("c")]))

    def test_sees_another_item_at_the_same_place(self) -> None:
        (found,) = prefix_agreement([delivered("a", 1, 2, 3), delivered("b", 1, 9)])
        assert found == Violation(PREFIX_AGREEMENT, "delivery 2: b has 9, a has 2", 2)

    def test_sees_a_missing_item_in_the_middle(self) -> None:
        assert list(prefix_agreement([delivered("a", 1, 2, 3), delivered("b", 1, 3)]))

    def test_sees_that_an_incarnation_forgot_what_the_one_before_delivered(self) -> None:
        (found,) = prefix_agreement([delivered("a", 1, 2, 3), delivered("a", 1, 7, incarnation=2)])
        assert "a'2 has 7" in found.detail


class TestNoGap:
    def test_holds_for_consecutive_numbers(self) -> None:
        assert not list(no_gap([delivered("a", 1, 2, 3), delivered("b")], lambda item: item, first=1))

    def test_lets_a_sequence_begin_anywhere_unless_told_where(self) -> None:
        assert not list(no_gap([delivered("a", 5, 6)], lambda item: item))
        assert list(no_gap([delivered("a", 5, 6)], lambda item: item, first=1))

    @pytest.mark.parametrize("numbers", [(1, 3), (1, 2, 2), (2, 1)])
    def test_sees_holes_repetitions_and_steps_back(self, numbers: tuple[int, ...]) -> None:
        (found,) = no_gap([delivered("a", *numbers)], lambda item: item)
        assert found.promise == NO_GAP


class TestExactlyOnce:
    def test_holds_when_everything_acknowledged_is_there_once(self) -> None:
        assert not list(exactly_once([delivered("a", 1, 2), delivered("b", 1)], lambda item: item, [1, 2]))

    def test_does_not_count_what_has_no_identity(self) -> None:
        assert not list(exactly_once([delivered("a", 0, 0)], lambda item: item or None))

    def test_sees_a_repetition(self) -> None:
        (found,) = exactly_once([delivered("a", 1, 2, 1)], lambda item: item)
        assert found == Violation(EXACTLY_ONCE, "a delivers 1 twice", 3)

    def test_sees_that_something_acknowledged_is_lost(self) -> None:
        (found,) = exactly_once([delivered("a", 1)], lambda item: item, [1, 2])
        assert found == Violation(EXACTLY_ONCE, "2 was acknowledged, but a never delivers it")


class TestAcyclicOrder:
    def test_holds_when_one_order_of_all_messages_exists(self) -> None:
        groups = [delivered("g1", "a", "b", "d"), delivered("g2", "b", "c"), delivered("g3", "a", "c", "d")]
        assert not list(acyclic_order(groups))

    def test_sees_a_cycle_that_no_two_groups_have(self) -> None:
        groups = [delivered("g1", "a", "b"), delivered("g2", "b", "c"), delivered("g3", "c", "a")]
        assert not list(same_order(groups))
        (found,) = acyclic_order(groups)
        assert found.promise == ACYCLIC_ORDER
        assert "a before b at g1" in found.detail
        assert "c before a at g3" in found.detail

    def test_sees_a_cycle_through_messages_in_between(self) -> None:
        assert list(acyclic_order([delivered("g1", "a", 1, 2, 3, "b"), delivered("g2", "b", 9, "a")]))

    def test_copes_with_histories_deeper_than_the_stack(self) -> None:
        assert not list(acyclic_order([delivered("g1", *range(50_000))]))


def judge(*operations: Operation, max_steps: int = 10_000) -> list[Violation]:
    return list(linearizable(operations, key=lambda command: command.key, step=one_copy, max_steps=max_steps))


class TestLinearizable:
    def test_holds_for_operations_one_after_the_other(self) -> None:
        assert not judge(get("c1", (1, 2), None), put("c1", (3, 4), "a"), get("c2", (5, 6), "a"))

    def test_lets_concurrent_operations_take_effect_in_any_order(self) -> None:
        writes = put("c1", (1, 10), "a"), put("c2", (1, 10), "b")
        assert not judge(*writes, get("c3", (11, 12), "a"))
        assert not judge(*writes, get("c3", (11, 12), "b"))

    def test_sees_a_stale_read(self) -> None:
        (found,) = judge(put("c1", (1, 2), "a"), put("c1", (3, 4), "b"), get("c2", (5, 6), "a"))
        assert found.promise == LINEARIZABLE
        assert "c2 #1 Get(key=x)" in found.detail
        assert found.at == 6

    def test_sees_reads_that_go_back_in_time_during_a_write(self) -> None:
        write = put("c1", (1, 100), "a")
        assert not judge(write, get("c2", (2, 3), None), get("c2", (4, 5), "a"))
        assert judge(write, get("c2", (2, 3), "a"), get("c3", (4, 5), None))

    def test_lets_an_unanswered_write_take_effect_late_or_never(self) -> None:
        lost = put("c1", (1, None), "a")
        assert not judge(lost, get("c2", (5, 6), None), get("c2", (50, 60), "a"))
        assert not judge(lost, get("c2", (5, 6), None), get("c2", (50, 60), None))
        assert judge(lost, get("c2", (5, 6), "a"), get("c2", (50, 60), None))

    def test_sees_two_conditional_writes_that_both_claim_to_have_won(self) -> None:
        first, second = (
            swap("c1", (1, 10), None, "a", done=True),
            swap("c2", (1, 10), None, "b", done=True),
        )
        assert judge(first, second)
        assert not judge(first, swap("c2", (1, 10), None, "b", done=False))

    def test_judges_each_key_on_its_own(self) -> None:
        found = judge(put("c1", (1, 2), "a", "x"), get("c2", (3, 4), None, "y"), get("c2", (5, 6), None, "x"))
        assert [violation.detail.split(":")[0] for violation in found] == ["key x"]

    def test_says_so_when_it_gives_up(self) -> None:
        many = [put(f"c{number}", (1, 100), str(number)) for number in range(12)]
        (found,) = judge(*many, get("c", (101, 102), "never written"), max_steps=500)
        assert found.promise == UNDECIDED

    def test_copes_with_long_histories(self) -> None:
        history: list[Operation] = []
        for number in range(400):
            at = 10 * number
            history += [put("c1", (at, at + 8), str(number)), get("c2", (at + 9, at + 12), str(number))]
        assert not judge(*history, max_steps=100_000)


class TestProgress:
    def test_holds_when_all_is_answered_and_all_have_everything(self) -> None:
        assert not list(eventual_answer([put("c1", (1, 2), "a")]))
        assert not list(eventual_delivery([delivered("a", 1, 2), delivered("b", 1, 2)]))

    def test_sees_a_client_that_waits_for_ever(self) -> None:
        (found,) = eventual_answer([put("c1", (1, 2), "a"), put("c2", (3, None), "b")])
        assert found.promise == EVENTUAL_ANSWER
        assert "c2" in found.detail

    @pytest.mark.parametrize("expected", [None, 2])
    def test_sees_a_replica_that_stays_behind(self, expected: Any) -> None:
        (found,) = eventual_delivery([delivered("a", 1, 2), delivered("b", 1)], expected)
        assert found == Violation(EVENTUAL_DELIVERY, "b stays at 1 of 2 deliveries")
