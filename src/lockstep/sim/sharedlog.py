"""The shared log inside a simulation: topics of partitions, appended to and followed by machines.

What Kafka would do is kept small here: an append gets the next offset of its partition, records never
change, and followers read in order without a gap. When the log is unavailable, appends fail without a
word on whether they took place, and reads wait.
"""

from lockstep.protocol.machine import LogRecord


class SharedLog:
    """All topics of a run. Partitions come into being when they are first used."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], list[LogRecord]] = {}
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
        records = self._partitions.setdefault((topic, partition), [])
        offset = len(records)
        records.append(LogRecord(topic, partition, offset, timestamp, key, value, headers))
        return offset

    def read(self, topic: str, partition: int, offset: int, limit: int = 1_000) -> list[LogRecord]:
        return self._partitions.get((topic, partition), [])[offset : offset + limit]

    def end(self, topic: str, partition: int) -> int:
        """The offset that the next record gets."""
        return len(self._partitions.get((topic, partition), ()))
