"""Cyclic graphs of stages are refused, and the refusal says why."""

import pytest

from lockstep.errors import UsageError
from lockstep.order.graph import Stage, check_acyclic


def test_stages_come_after_those_they_read_from() -> None:
    """The graph of the paper's Fig. 6: two sources, three tasks."""
    third = Stage("t3", ("t1-out", "t2-out"), ("out",))
    first, second = Stage("t1", ("s1",), ("t1-out",)), Stage("t2", ("s1", "s2"), ("t2-out",))
    assert check_acyclic([third, second, first])[-1] == third


def test_a_diamond_is_no_cycle() -> None:
    stages = [
        Stage("split", ("in",), ("left", "right")),
        Stage("a", ("left",), ("a-out",)),
        Stage("b", ("right",), ("b-out",)),
        Stage("join", ("a-out", "b-out"), ("out",)),
    ]
    assert [stage.name for stage in check_acyclic(stages)][0::3] == ["split", "join"]


def test_a_cycle_is_refused_and_named_step_by_step() -> None:
    stages = [
        Stage("count", ("in", "totals"), ("counts",)),
        Stage("sum", ("counts",), ("totals", "out")),
    ]
    with pytest.raises(UsageError, match="the stages form a cycle") as refused:
        check_acyclic(stages)
    assert "count writes counts, which sum reads" in refused.value.message
    assert "sum writes totals, which count reads" in refused.value.message
    assert "run of its own" in refused.value.hint


def test_a_stage_that_reads_its_own_output_is_a_cycle() -> None:
    with pytest.raises(UsageError, match="loop writes again, which loop reads"):
        check_acyclic([Stage("loop", ("in", "again"), ("again", "out"))])


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two stages are called 'a'"):
        check_acyclic([Stage("a", ("in",), ("x",)), Stage("a", ("x",), ("out",))])
