"""The shared log inside a simulation: the in-memory twin of Kafka, with outages of the whole log.

Topics come into being when they are first used. When the log is unavailable, the world lets appends fail
without a word on whether they took place, and lets reads wait.
"""

from lockstep.log.interface import Entry
from lockstep.log.memory import MemoryStore
from lockstep.protocol.machine import LogRecord

PARTITIONS = 64


class SharedLog:
    """All topics of a run."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.available = True

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
        timestamp: int = 0,
    ) -> int:
        """Append one record; its offset. `timestamp` is in milliseconds, as Kafka's."""
        self._ensure(topic)
        return self.store.append_now(topic, partition, (Entry(value, key, headers, timestamp),))[0]

    def read(self, topic: str, partition: int, offset: int, limit: int = 1_000) -> list[LogRecord]:
        self._ensure(topic)
        return self.store.read_now(topic, partition, offset, limit)

    def end(self, topic: str, partition: int) -> int:
        """The offset that the next record gets."""
        self._ensure(topic)
        return self.store.end_offset_now(topic, partition)

    def _ensure(self, topic: str) -> None:
        if self.store.identity_now(topic) is None:
            self.store.create_topic_now(topic, partitions=PARTITIONS)
