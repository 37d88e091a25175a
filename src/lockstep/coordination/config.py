"""What one server of the ensemble is told when it starts."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from lockstep.coordination.clients import Limits
from lockstep.coordination.membership import Member
from lockstep.coordination.zab.settings import Settings


class Tls(Struct, frozen=True):
    """Contexts for both sides; None leaves a channel in the clear."""

    clients: ssl.SSLContext | None = None
    peers_accept: ssl.SSLContext | None = None
    peers_dial: ssl.SSLContext | None = None


class NodeConfig(Struct, frozen=True):
    server: int
    members: Mapping[int, Member]
    folder: Path
    name: str = ""
    tick_ms: int = 2000
    zab: Settings = Settings()
    limits: Limits = Limits()
    secret: bytes = b""
    super_digest: str | None = None
    enforce_quota: bool = False
    snapshot_every: int = 100_000
    snapshot_bytes: int = 128 << 20
    """A snapshot is due after so many transactions, or so many bytes of them."""
    tls: Tls = Tls()
