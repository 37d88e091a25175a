"""One output of a run, as a deduplicated reader sees it."""

from typing import Any

from lockstep.spark.identity import MICROBATCH, SITE_HEADER, Identity, decode


class OutputRecord:
    """A Kafka record with the identity that the sink gave it. Fields are read from it when asked for."""

    __slots__ = ("_headers", "_identity", "message")

    def __init__(self, message: Any, headers: list[tuple[str, bytes | None]], identity: bytes) -> None:
        self.message = message
        self._headers = headers
        self._identity = identity

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self.message.key()
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self.message.value()
        return value

    @property
    def partition(self) -> int:
        return int(self.message.partition())

    @property
    def offset(self) -> int:
        return int(self.message.offset())

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, as the broker or the site stamped it."""
        return int(self.message.timestamp()[1])

    @property
    def sn(self) -> int:
        """The sequence number that caused this output (micro-batch: the sealed batch that did)."""
        return int.from_bytes(self._identity[10:18], "big")

    @property
    def k(self) -> int:
        """Which of the rows that this cause had in its reducer (micro-batch: the row's ordinal)."""
        return int.from_bytes(self._identity[18:22], "big")

    @property
    def shard(self) -> int:
        """The shard of the input that caused it; -1 in micro-batch, where a batch spans all shards."""
        return int.from_bytes(self._identity[2:6], "big", signed=True)

    @property
    def reducer(self) -> int:
        return int.from_bytes(self._identity[6:10], "big", signed=True)

    @property
    def engine(self) -> str:
        return "microbatch" if self._identity[1] == MICROBATCH else "realtime"

    @property
    def identity(self) -> Identity:
        return decode(self._identity)

    @property
    def site(self) -> str:
        """The site whose copy arrived first."""
        for name, value in self._headers:
            if name == SITE_HEADER:
                return (value or b"").decode("utf-8", "replace")
        return ""

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def __repr__(self) -> str:
        return f"OutputRecord(shard={self.shard}, sn={self.sn}, k={self.k}, site={self.site!r})"
