"""Every number and switch of the protocol, in one frozen place (paper sections 3, 4.1 and table 3).

The three variants of the paper's section 6: `vanilla` (no technique), `rtzk-l` (FCE and QCN), `rtzk` (all).
The defaults are calibrated for servers on one machine or LAN; `paper()` has the paper's own values.
Times are in seconds.
"""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from lockstep.errors import UsageError

Variant: TypeAlias = Literal["vanilla", "rtzk-l", "rtzk"]
VARIANTS: tuple[Variant, ...] = ("vanilla", "rtzk-l", "rtzk")
MAX_SERVERS = 9


class Settings(Struct, frozen=True, kw_only=True):
    """Which techniques are on, and all timing."""

    fce: bool = True
    """Fast-convergence election: answer a lower logical clock with the vote at once (3.1.2)."""
    qcn: bool = True
    """Quorum-channel notification: the leader says when it can be connected to (3.2.2)."""
    dep: bool = True
    """Distributed epoch persistence: epochs in a quorum's memory instead of four disk writes (3.3.2)."""

    finalize_wait: float = 0.008
    """w: how long a quorum's vote must stand before it is taken. Safety never rests on it."""
    table_wait: float = 0.002
    """The same wait for the EpochTable flood. A quorum's tables already contain the last committed one,
    so that this only spares a later merge."""
    resend_first: float = 0.002
    """FCE: the pause before the first re-send to one peer; doubles up to `resend_most`."""
    resend_most: float = 0.1
    rebroadcast: float = 0.2
    """FLE: without any news for this long, broadcast the vote again; doubles up to `rebroadcast_most`."""
    rebroadcast_most: float = 2.0
    connect_retry: float = 0.02
    """A follower that was refused tries again after this; with QCN it is the fallback of a lost CNX_READY."""
    recall_wait: float = 0.06
    """DEP: how long a server without memory waits for a majority with memory before it uses its ceiling."""
    founding_wait: float = 2.0
    """A new ensemble begins when all its servers are there, all with empty disks; or a quorum of such, if no
    other was heard for this long. A single wiped server among them would be taken for a new one."""
    phase_limit: float = 1.0
    """A follower must find its leader, and a leader a quorum, within this, else it looks again."""
    sync_limit: float = 20.0
    """The same for the synchronisation, which may carry a snapshot over a slow disk. A peer that is gone is
    noticed by its silence long before."""

    beat: float = 0.05
    """Heartbeat period; also the clock of all silence detection."""
    silent_beats: int = 5
    """A peer that was silent for this many beats is gone: detection after 250 to 300 ms."""
    ceiling_span: int = 64
    """DEP: how many epochs one reservation on disk covers."""

    snapshot_chunk: int = 256 * 1024
    snapshot_limit: int = 4 << 30
    log_keep: int = 2000
    """How many transactions before the last checkpoint stay in memory, to bring followers up by DIFF."""
    batch_limit: int = 10_000
    """The most transactions in one message."""

    def __post_init__(self) -> None:
        if self.finalize_wait < 0 or self.beat <= 0 or self.silent_beats < 2 or self.ceiling_span < 2:
            raise UsageError(
                "these election settings cannot work",
                hint="beat must be above 0, silent_beats and ceiling_span at least 2, waits not negative",
            )

    @property
    def detection(self) -> float:
        """The longest time in which a silent failure is noticed."""
        return self.beat * (self.silent_beats + 1)


def variant(name: Variant, base: Settings | None = None) -> Settings:
    """The settings of one of the paper's variants; `vanilla` has ZooKeeper's fixed waits (4.1, 3.2.1)."""
    base = base or Settings()
    match name:
        case "vanilla":
            return msgspec.structs.replace(
                base, fce=False, qcn=False, dep=False, finalize_wait=0.2, connect_retry=1.0, phase_limit=2.0
            )
        case "rtzk-l":
            return msgspec.structs.replace(base, fce=True, qcn=True, dep=False)
        case "rtzk":
            return msgspec.structs.replace(base, fce=True, qcn=True, dep=True)
    raise UsageError(f"there is no variant {name!r}", hint=f"use one of {', '.join(VARIANTS)}")


def paper() -> Settings:
    """The paper's testbed (table 3): w = 20 ms for both runs of OptFloodMax."""
    return Settings(finalize_wait=0.020, table_wait=0.020)
