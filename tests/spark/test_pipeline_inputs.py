"""Inputs of several topics, and the stages of a file."""

from pathlib import Path

import pytest

import lockstep
from lockstep.errors import UsageError
from lockstep.replicas.manifest import choose_order
from lockstep.spark.inputs import Broadcast, Input
from lockstep.spark.pipeline import load, load_stages

PARTITIONS = {"events": 2, "refunds": 2, "rules": 3, "clicks": 5}


def test_a_shard_reads_its_partition_of_each_topic_and_all_of_a_broadcast_one() -> None:
    merged = Input.declare(("events", "refunds", lockstep.broadcast("rules")))
    assert merged.name == "events+refunds+rules!"
    assert Input.parse(merged.name) == merged
    assert merged.shards(PARTITIONS) == 2
    assert merged.queues(1, PARTITIONS) == (
        ("events", 1),
        ("refunds", 1),
        ("rules", 0),
        ("rules", 1),
        ("rules", 2),
    )
    assert merged.spec({"refunds"}) == "events+refunds~+rules!"
    assert merged.spec({"rules"}) == "events+refunds+rules~!"


def test_a_broadcast_topic_alone_is_one_shard_of_all_its_partitions() -> None:
    alone = Input((Broadcast("rules"),))
    assert alone.shards(PARTITIONS) == 1
    assert len(alone.queues(0, PARTITIONS)) == 3


def test_topics_that_are_not_partitioned_alike_are_refused() -> None:
    with pytest.raises(UsageError, match="events has 2, clicks has 5"):
        Input.declare(("events", "clicks")).shards(PARTITIONS)


@pytest.mark.parametrize("declared", [(), ("a", ""), ("a", "b+c"), ("a", "b!"), ("a~",), (1,)])
def test_what_is_no_input_is_refused(declared: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        lockstep.pipeline(inputs=[declared], output="out")


@pytest.mark.parametrize("declared", [["a", ("a", "b")], [("a", "a")], [("a", "out")]])
def test_a_topic_is_read_once(declared: list[tuple[str, ...]]) -> None:
    with pytest.raises(UsageError, match=r"named twice|both input and output"):
        lockstep.pipeline(inputs=declared, output="out")


def test_auto_takes_the_order_that_the_inputs_need_and_says_why() -> None:
    assert choose_order("auto", [Input(("a",)), Input(("b",))])[0] == "partition"
    order, why = choose_order("auto", [Input(("a",)), Input(("b", "c"))])
    assert (order, why) == ("liverobin", "input b+c has several queues")
    assert choose_order("kazoo", [Input(("a",))]) == ("kazoo", "as requested")
    with pytest.raises(UsageError, match="no order among themselves"):
        choose_order("partition", [Input(("b", "c"))])


def test_heartbeats_go_only_into_topics_that_stages_write() -> None:
    own = ["x", "y"]
    assert choose_order("inband", [Input(("x", "y"))], own) == ("inband", "as requested")
    assert choose_order("inband", [Input(("x",))], own)[0] == "partition"
    order, why = choose_order("inband", [Input(("x", "theirs"))], own)
    assert order == "liverobin"
    assert "theirs" in why


_STAGE = """
@lockstep.pipeline(inputs={inputs}, output="{output}")
def {name}(rows): return rows
"""


def _file(folder: Path, *stages: tuple[str, list[str], str]) -> Path:
    path = folder / "stages.py"
    text = "".join(_STAGE.format(name=name, inputs=inputs, output=output) for name, inputs, output in stages)
    path.write_text(f"import lockstep\n{text}")
    return path


def test_stages_come_in_the_order_of_their_data(tmp_path: Path) -> None:
    path = _file(tmp_path, ("last", ["b"], "c"), ("first", ["in"], "a"), ("middle", ["a"], "b"))
    assert [stage.name for stage in load_stages(path)] == ["first", "middle", "last"]
    assert load(path).name == "last"
    assert load(f"{path}:middle").name == "middle"


def test_a_cycle_of_stages_is_refused_with_an_explanation(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cycle.*writes a, which two reads"):
        load_stages(_file(tmp_path, ("one", ["b"], "a"), ("two", ["a"], "b")))


def test_pipelines_that_have_nothing_to_do_with_each_other_are_no_stages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not stages of one"):
        load_stages(_file(tmp_path, ("one", ["in"], "a"), ("two", ["in"], "b")))
    with pytest.raises(UsageError, match="two stages write to one topic"):
        load_stages(_file(tmp_path, ("one", ["in"], "a"), ("two", ["other"], "a"), ("three", ["a"], "b")))
