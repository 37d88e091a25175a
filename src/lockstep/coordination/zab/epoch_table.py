"""The EpochTable of distributed epoch persistence (paper 3.3.2, table 1).

A table holds the acceptedEpoch and currentEpoch of every server. Tables merge by entrywise maximum, so that
no order of arrival and no concurrent leader can make an entry go back.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from lockstep.coordination.zab.interface import ServerId


class EpochTable(Struct, frozen=True):
    version: int
    num_servers: int
    accepted: dict[ServerId, int]
    current: dict[ServerId, int]

    @classmethod
    def empty(cls, servers: Iterable[ServerId]) -> "EpochTable":
        ids = sorted(servers)
        return cls(0, len(ids), dict.fromkeys(ids, 0), dict.fromkeys(ids, 0))

    def merge(self, other: "EpochTable") -> "EpochTable":
        """The entrywise maximum of the two, and the later version. Servers unknown here are left out."""
        return EpochTable(
            max(self.version, other.version),
            self.num_servers,
            {server: max(epoch, other.accepted.get(server, 0)) for server, epoch in self.accepted.items()},
            {server: max(epoch, other.current.get(server, 0)) for server, epoch in self.current.items()},
        )

    def raised(
        self,
        *,
        accepted: Mapping[ServerId, int] | None = None,
        current: Mapping[ServerId, int] | None = None,
        step: int = 0,
    ) -> "EpochTable":
        """This table with some entries raised; never lowered."""
        return EpochTable(
            self.version + step,
            self.num_servers,
            {server: max(epoch, (accepted or {}).get(server, 0)) for server, epoch in self.accepted.items()},
            {server: max(epoch, (current or {}).get(server, 0)) for server, epoch in self.current.items()},
        )

    @property
    def highest(self) -> int:
        """The highest epoch that any entry names."""
        return max((*self.accepted.values(), *self.current.values()), default=0)
