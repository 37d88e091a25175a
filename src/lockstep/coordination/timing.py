"""The timing model of a recovery (RT-ZooKeeper paper, section 4, equations 1 to 8), as code.

An estimate that guides the choice of the waits; the paper's section 5 calls it no bound, and neither do we.
All times are in seconds, `servers` is the number that takes part in the recovery: after a crash, one less than the
ensemble (section 6).
"""

from collections.abc import Callable
from statistics import median

import msgspec
from msgspec import Struct

from lockstep.coordination.zab.settings import Settings, Variant


class Parameters(Struct, frozen=True, kw_only=True):
    """Table 2's symbols."""

    s_e: float
    """Initialisation of phase 1."""
    j: float
    """Jitter between the servers' noticing of the failure."""
    d: float
    """The longest transmission of a message."""
    w: float
    """finalizeWait of the election."""
    w_table: float
    """finalizeWait of the EpochTable flood; the paper has one w for both."""
    h: float
    """Processing of one election message."""
    s_r: float
    """Initialisation and fixed message exchanges of phase 2."""
    h_r: float
    """Processing of one server's messages in phase 2 of RTZK."""
    b: float
    """One write to disk."""
    retry: float = 1.0
    """A refused follower's fixed wait (3.2.1)."""


class Estimate(Struct, frozen=True):
    """Election and recovery apart, and their sum."""

    election: float
    recovery: float

    @property
    def total(self) -> float:
        """Equation 1: T = T_e + T_r."""
        return self.election + self.recovery


PAPER = Parameters(
    s_e=0.035, j=0.013, d=0.003, w=0.020, w_table=0.020, h=0.003, s_r=0.055, h_r=0.025, b=0.300
)
"""Table 3, and d from section 6. b is not in the table: "as long as 300ms" is what 3.3.1 says of one write."""


def wait_suffices(p: Parameters) -> bool:
    """Equation 2: w > j + d, or a vote that comes late makes a false leader."""
    return p.w > p.j + p.d


def flood_far(p: Parameters) -> float:
    """Equation 3: one OptFloodMax where transmission dominates (public cloud)."""
    return 2 * p.d + p.w


def flood(p: Parameters, servers: int, w: float | None = None) -> float:
    """Equation 4: one OptFloodMax where processing dominates (LAN): N(N+1)/2 messages at the leader."""
    return servers * (servers + 1) / 2 * p.h + (p.w if w is None else w)


def election_rtzk(p: Parameters, servers: int) -> float:
    """Equation 5: two floods (EpochTable, votes), one initialisation."""
    return p.s_e + p.j + flood(p, servers, p.w_table) + flood(p, servers)


def election_lite(p: Parameters, servers: int) -> float:
    """Equation 5 with one flood: RTZK-L and vanilla have no EpochTable."""
    return p.s_e + p.j + flood(p, servers)


def recovery_vanilla(p: Parameters) -> float:
    """Equation 6: four epoch writes."""
    return p.s_r + 4 * p.b


def recovery_rtzk(p: Parameters, servers: int) -> float:
    """Equation 7: no disk, more messages."""
    return p.s_r + servers * p.h_r


def estimate(variant: Variant, p: Parameters, servers: int, *, retries: int = 0, rounds: int = 1) -> Estimate:
    """Equations 1 and 8 for a variant. Vanilla may need several finalizeWait rounds (3.1.1) and refused
    connections (3.2.1), which `rounds` and `retries` add: the model itself has neither."""
    match variant:
        case "rtzk":
            return Estimate(election_rtzk(p, servers), recovery_rtzk(p, servers))
        case "rtzk-l":
            return Estimate(election_lite(p, servers), recovery_vanilla(p))
        case "vanilla":
            election = election_lite(p, servers) + (rounds - 1) * p.w
            return Estimate(election, recovery_vanilla(p) + retries * p.retry)


def calibrate(
    settings: Settings,
    *,
    handle: Callable[[], float],
    write: Callable[[], float],
    carry: Callable[[], float],
    notice: Callable[[], float],
    samples: int = 50,
) -> Parameters:
    """The parameters of this machine. Each callable does its thing once and returns the seconds it took:
    `handle` one election message, `write` one durable epoch record, `carry` one message to a peer and back,
    `notice` one closed connection until the server starts to look."""
    h = _typical(handle, samples)
    d = max(carry() for _ in range(samples)) / 2
    notices = sorted(notice() for _ in range(samples))
    round_trip = 2 * d + 2 * h
    return Parameters(
        s_e=notices[len(notices) // 2],
        j=notices[-1] - notices[0],
        d=d,
        w=settings.finalize_wait,
        w_table=settings.table_wait,
        h=h,
        # FOLLOWERINFO/LEADERINFO, ACKEPOCH/NEWLEADER, ACK/UPTODATE: three exchanges with the slowest peer.
        s_r=3 * round_trip,
        # Two EpochTable commits: two exchanges, and their handling for each server.
        h_r=2 * round_trip / 2 + 4 * h,
        b=_typical(write, samples),
        retry=settings.connect_retry,
    )


def explain(variant: Variant, p: Parameters, servers: int) -> str:
    """One line for people, to stand beside a measurement."""
    found = estimate(variant, p, servers)
    return (
        f"estimate ({variant}, {servers} servers in recovery): election {found.election * 1000:.1f} ms + "
        f"recovery {found.recovery * 1000:.1f} ms = {found.total * 1000:.1f} ms (equation 8; no bound)"
    )


def with_waits(p: Parameters, settings: Settings) -> Parameters:
    """The same machine under other settings."""
    return msgspec.structs.replace(
        p, w=settings.finalize_wait, w_table=settings.table_wait, retry=settings.connect_retry
    )


def _typical(once: Callable[[], float], samples: int) -> float:
    return median(once() for _ in range(samples))
