"""What the service of one server keeps of each client, what a client may ask of it, and its settings."""

from collections import deque
from typing import Protocol

from msgspec import Struct

from lockstep.coordination import access


class Limits(Struct, frozen=True):
    """What one peer may ask of a server."""

    request_bytes: int = 1_048_575
    connections_per_address: int = 1000
    connections: int = 20_000
    outstanding_per_connection: int = 2000
    outstanding: int = 20_000
    outstanding_bytes: int = 16 << 20
    """Of all connections of one server together."""


class Settings(Struct, frozen=True):
    server: int
    incarnation: int = 1
    """Another number after each start of the server."""
    tick_ms: int = 2000
    grace_ms: int = 10_000
    enforce_quota: bool = False
    super_digest: str | None = None
    config_text: str = ""
    limits: Limits = Limits()


class Port(Protocol):
    """A client's connection, as the service needs it."""

    def write(self, frame: bytes) -> None: ...

    def close(self) -> None:
        """Close once everything written so far is sent."""

    def pause(self) -> None:
        """Read nothing more from the client for now."""

    def resume(self) -> None: ...


class Client:
    """One connection. `queue` holds what must be answered in order: numbers of writes, and reads."""

    def __init__(self, port: Port, address: str, since_ms: int) -> None:
        self.port = port
        self.address = address
        self.since_ms = since_ms
        self.session = 0
        self.timeout = 0
        self.is_connected = False
        self.is_closed = False
        self.close_with_connection = False
        self.identities: tuple[access.Identity, ...] = (("ip", address),)
        self.queue: deque[int | tuple[int, int, bytes]] = deque()
        self.is_paused = False
        self.received = 0
        self.sent = 0


class Latency:
    """How long clients waited for their writes, in milliseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = 0.0
        self.most = 0.0

    def add(self, milliseconds: float) -> None:
        self.least = min(self.least, milliseconds) if self.count else milliseconds
        self.most = max(self.most, milliseconds)
        self.total += milliseconds
        self.count += 1

    def summary(self) -> tuple[int, float, int]:
        """(least, mean, most)"""
        return int(self.least), round(self.total / self.count, 4) if self.count else 0.0, int(self.most)
