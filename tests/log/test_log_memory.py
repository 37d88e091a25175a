"""The in-memory twin keeps the contract of a log, and its faults do what they say."""

import pytest
from contract import LogContract, entries, values

from lockstep.log.errors import OffsetOutOfRange, Unavailable, UnknownTopic
from lockstep.log.interface import Entry, Log
from lockstep.log.memory import MemoryLog, MemoryStore


class TestMemoryLog(LogContract):
    def setup_method(self) -> None:
        self.store = MemoryStore()

    def open_log(self) -> Log:
        return MemoryLog(self.store)


def test_the_store_needs_no_event_loop_and_gives_the_same_for_the_same_calls() -> None:
    def history() -> list[object]:
        store = MemoryStore(clock=iter(range(1, 100)).__next__)
        store.create_topic_now("t", partitions=2)
        store.append_now("t", 0, entries("a", "b"))
        store.append_now("t", 1, [Entry(b"c", b"k", (("h", b"1"),))])
        return [*store.read_now("t", 0, 0), *store.read_now("t", 1, 0)]

    assert history() == history()


def test_an_unavailable_partition_refuses_everything_and_forgets_nothing() -> None:
    store = MemoryStore()
    store.create_topic_now("t", partitions=2)
    store.append_now("t", 0, entries("a"))
    store.set_available("t", 0, False)
    for attempt in (
        lambda: store.append_now("t", 0, entries("b")),
        lambda: store.read_now("t", 0, 0),
        lambda: store.end_offset_now("t", 0),
    ):
        with pytest.raises(Unavailable):
            attempt()
    assert store.append_now("t", 1, entries("other")) == [0]
    store.set_available("t", 0, True)
    assert store.append_now("t", 0, entries("b")) == [1]
    assert values(store.read_now("t", 0, 0)) == ["a", "b"]


def test_trimming_and_deleting_are_seen_at_once() -> None:
    store = MemoryStore()
    store.create_topic_now("t")
    store.append_now("t", 0, entries(*"abc"))
    store.trim_now("t", 0, 2)
    with pytest.raises(OffsetOutOfRange):
        store.read_now("t", 0, 1)
    assert store.append_now("t", 0, entries("d")) == [3]
    before = store.identity_now("t")
    store.delete_topic_now("t")
    with pytest.raises(UnknownTopic):
        store.read_now("t", 0, 3)
    store.create_topic_now("t")
    assert store.identity_now("t") != before
    assert store.end_offset_now("t", 0) == 0


def test_watchers_hear_of_every_change_until_they_stop() -> None:
    store = MemoryStore()
    heard: list[int] = []
    store.create_topic_now("t")
    stop = store.watch(lambda: heard.append(store.end_offset_now("t", 0)))
    store.append_now("t", 0, entries("a"))
    store.append_now("t", 0, entries("b", "c"))
    stop()
    store.append_now("t", 0, entries("d"))
    assert heard == [1, 3]
