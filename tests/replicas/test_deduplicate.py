"""Promises of deduplication: whatever sites crash and replay, every output is accepted once and in order."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.replicas.deduplicate import MAX_SEQUENCES, Marks, well_formed
from lockstep.spark.identity import REALTIME, Identity, encode

PARTITIONS = 3


@dataclass(frozen=True)
class Written:
    partition: int
    identity: bytes


@dataclass(frozen=True)
class History:
    """What a run must output, and the log of each output partition after crashes and replays."""

    outputs: tuple[Written, ...]
    logs: tuple[tuple[bytes, ...], ...]


def outputs_of(causes: list[tuple[int, int, int]]) -> tuple[Written, ...]:
    """Each cause is (shard, rows, a number that places the rows): numbered as the sink numbers them."""
    next_sn = {0: 0, 1: 0}
    written = []
    for shard, rows, placing in causes:
        sn = next_sn[shard]
        next_sn[shard] += 1
        for k in range(rows):
            reducer = (placing + k) % 2
            identity = encode(Identity(REALTIME, shard, reducer, sn, k // 2))
            written.append(Written((placing // 2 + k) % PARTITIONS, identity))
    return tuple(written)


@st.composite
def histories(draw: st.DrawFn) -> History:
    cause = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 11))
    outputs = outputs_of(draw(st.lists(cause, max_size=25)))
    lanes = sorted({(o.partition, o.identity[2:10]) for o in outputs})  # tasks write independently
    queues: dict[tuple[int, bytes], list[list[bytes]]] = {lane: [] for lane in lanes}
    for site in range(draw(st.integers(1, 3))):
        lives: list[tuple[int, int, int]] = []  # (from, reached, flushed before the checkpoint)
        checkpoint = 0
        for _ in range(draw(st.integers(0, 3))):
            reached = draw(st.integers(checkpoint, len(outputs)))
            flushed = draw(st.integers(checkpoint, reached))
            lives.append((checkpoint, reached, flushed))
            checkpoint = flushed
        for lane in lanes:
            log: list[bytes] = []
            for start, reached, flushed in lives:  # each ends in a crash, and each lane loses its own tail
                durable = _of(lane, outputs[start:flushed])
                in_flight = _of(lane, outputs[flushed:reached])
                log += durable + in_flight[: draw(st.integers(0, len(in_flight)))]
            if site == 0:  # at least one site gets through in the end
                log += _of(lane, outputs[checkpoint:])
            queues[lane].append(log)
    logs = []
    for partition in range(PARTITIONS):
        pending = [list(q) for lane in lanes if lane[0] == partition for q in queues[lane] if q]
        log = []
        while pending:
            chosen = draw(st.integers(0, len(pending) - 1))
            log.append(pending[chosen].pop(0))
            pending = [q for q in pending if q]
        logs.append(tuple(log))
    return History(outputs, tuple(logs))


def _of(lane: tuple[int, bytes], outputs: tuple[Written, ...]) -> list[bytes]:
    return [o.identity for o in outputs if (o.partition, o.identity[2:10]) == lane]


Accept = Callable[[int, bytes], bool]


def correct() -> Accept:
    marks = [Marks() for _ in range(PARTITIONS)]
    return lambda partition, identity: marks[partition].accept(identity)


def accepts_equal() -> Accept:
    """Planted bug: `>=` instead of `>`."""
    marks: dict[tuple[int, bytes], bytes] = {}

    def accept(partition: int, identity: bytes) -> bool:
        mark = marks.get((partition, identity[2:10]), b"")
        if identity[10:] >= mark:
            marks[(partition, identity[2:10])] = identity[10:]
            return True
        return False

    return accept


def across_partitions() -> Accept:
    """Planted bug: one set of marks for all output partitions."""
    marks = Marks()
    return lambda partition, identity: marks.accept(identity)


def ignores_reducer() -> Accept:
    """Planted bug: the mark is kept per shard alone."""
    marks = [Marks() for _ in range(PARTITIONS)]
    return lambda partition, identity: marks[partition].accept(identity[:6] + bytes(4) + identity[10:])


def check(history: History, accept: Accept) -> None:
    """Knows only the promise: per partition exactly the run's outputs, each (shard, reducer) in order."""
    for partition, log in enumerate(history.logs):
        accepted = [identity for identity in log if accept(partition, identity)]
        due = [o.identity for o in history.outputs if o.partition == partition]
        assert sorted(accepted) == sorted(due), "lost or duplicated"
        for sequence in {identity[2:10] for identity in due}:
            assert [i for i in accepted if i[2:10] == sequence] == [i for i in due if i[2:10] == sequence]


@settings(max_examples=300)
@given(histories())
def test_every_output_is_accepted_once_and_in_order(history: History) -> None:
    check(history, correct())


@settings(max_examples=100)
@given(histories(), st.data())
def test_marks_survive_a_restart_at_any_point(history: History, data: st.DataObject) -> None:
    marks = [Marks() for _ in range(PARTITIONS)]
    restart = st.sampled_from(["no", "bytes", "text"])

    def accept(partition: int, identity: bytes) -> bool:
        match data.draw(restart):
            case "bytes":
                marks[partition] = Marks.decode(marks[partition].encode())
            case "text":
                marks[partition] = Marks.from_text(marks[partition].to_text())
        return marks[partition].accept(identity)

    check(history, accept)


@pytest.mark.parametrize("planted", [accepts_equal, across_partitions, ignores_reducer])
def test_the_checker_catches(planted: Callable[[], Accept]) -> None:
    caught = 0

    @settings(max_examples=400, database=None, derandomize=True)
    @given(histories())
    def search(history: History) -> None:
        nonlocal caught
        try:
            check(history, planted())
        except AssertionError:
            caught += 1

    search()
    assert caught > 0


@given(
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
)
def test_comparing_bytes_is_comparing_numbers(first: tuple[int, int], second: tuple[int, int]) -> None:
    marks = Marks()
    assert marks.accept(encode(Identity(REALTIME, 0, 0, *first)))
    assert marks.accept(encode(Identity(REALTIME, 0, 0, *second))) == (second > first)


def test_memory_is_one_mark_per_sequence() -> None:
    marks = Marks()
    for sn in range(10_000):
        marks.accept(encode(Identity(REALTIME, 0, sn % 8, sn, 0)))
    assert len(marks) == 8
    assert {(shard, reducer): a for shard, reducer, a, _ in marks.items()}[(0, 7)] == 9_999


def test_a_peer_cannot_grow_the_marks_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.replicas.deduplicate.MAX_SEQUENCES", 4)
    marks = Marks()
    with pytest.raises(LockstepError, match="pairs in one output partition"):
        for reducer in range(5):
            marks.accept(encode(Identity(REALTIME, 0, reducer, 0, 0)))
    assert MAX_SEQUENCES > 4


@pytest.mark.parametrize("text", ["", "!", "zzzz", Marks().to_text()[:-2], "VPaUG"])
def test_damaged_marks_are_refused(text: str) -> None:
    with pytest.raises(LockstepError):
        Marks.from_text(text)


def test_only_comparable_identities_are_well_formed() -> None:
    good = encode(Identity(REALTIME, 0, 1, 2, 3))
    assert well_formed(good)
    assert not well_formed(None)
    assert not well_formed(good[:-1])
    assert not well_formed(b"\x02" + good[1:])
    assert not well_formed(encode(Identity(REALTIME, 0, 1, -2, 3)))
    assert not well_formed(encode(Identity(REALTIME, 0, 1, 2, -3)))
