"""A replica that reads, takes and restarts at its position, whenever: its sequence is that without one."""

from collections.abc import Sequence

from hypothesis import strategies as st

from lockstep.order.merge import Input, Merge
from lockstep.order.records import Cut, Queue, Skip


def check_restarts(
    cuts: Sequence[Cut],
    begun: int,
    most: int,
    data: st.DataObject,
    growing: frozenset[Queue] = frozenset(),
) -> None:
    """`begun` queues at first, `most` at last; up to three inputs are skipped."""
    records: list[Cut | Skip] = list(cuts)
    for _ in range(data.draw(st.integers(0, 3))):
        skip = Skip(data.draw(st.integers(0, most - 1)), data.draw(st.integers(0, 20)), "bad")
        records.insert(data.draw(st.integers(0, len(records))), skip)
    whole = Merge((0,) * begun, growing)
    for offset, record in enumerate(records):
        whole.follow(offset, record)
    expected = whole.take(10_000)

    merge = Merge((0,) * begun, growing)
    read = 0
    merged: list[Input] = []
    while len(merged) < len(expected) or read < len(records):
        match data.draw(st.sampled_from(["read", "take", "restart"])) if read < len(records) else "take":
            case "read":
                merge.follow(read, records[read])
                read += 1
            case "take":
                merged += merge.take(data.draw(st.integers(1, 5)))
            case "restart":
                position = merge.position()
                assert position.upcoming == len(merged)
                assert len(position.inputs) == begun + len(position.added)
                merge, read = Merge.at(position, growing), position.order_offset
    assert [(one.queue, one.offset, one.sn) for one in merged] == [
        (one.queue, one.offset, one.sn) for one in expected
    ]
