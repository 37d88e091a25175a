"""Which faults one seed brings, and how hard: drawn anew for every seed.

Swarm testing: a run with every fault at once rarely reaches deep states, since nothing gets done in it.
So each seed turns on a random subset of the permitted faults and draws its own intensities; over many
seeds every combination is met, and quiet runs are met too.

All times are in microseconds of virtual time; `0` means that the fault is off.
"""

from random import Random

from msgspec import Struct

MILLISECOND = 1_000
SECOND = 1_000_000


class Permits(Struct, frozen=True):
    """The faults that a protocol's promises must survive. What it does not claim to survive is off."""

    loose: bool = True
    """Datagrams: each message may be lost, doubled or overtaken on its own. Without it, links are
    ordered as the contract of a machine promises, and a loss breaks the connection."""
    loss: bool = True
    partitions: bool = True
    crashes: bool = True
    power_cuts: bool = True
    """Several nodes crash at the same instant."""
    lost_disks: int = 0
    """How many crashes of a run may also wipe the node's disk."""
    pauses: bool = True
    skew: float = 1.3
    """The fastest clock's speed over the slowest's, at most."""
    log_outages: bool = True
    max_down: int | None = None
    """How many nodes may be down at once; None: all of them."""


class FaultMix(Struct, frozen=True):
    """One seed's faults."""

    loose: bool = False
    loss: float = 0.0
    duplication: float = 0.0
    delay: int = 500
    jitter: int = 500
    stragglers: float = 0.0
    """Share of messages that take up to 50 times as long."""
    partition_every: int = 0
    partition_for: int = 0
    one_way: float = 0.0
    flapping: float = 0.0
    crash_every: int = 0
    down_for: int = 0
    power_cut: float = 0.0
    """Share of crashes that hit several nodes at once."""
    ambush: float = 0.0
    """Share of disk flushes that a crash follows at once."""
    disk_loss: float = 0.0
    disk_latency: int = 200
    slow_disk: int = 0
    """Latency of the disk of the one node that has a slow disk."""
    pause_every: int = 0
    pause_for: int = 0
    slow_node: int = 0
    """Time that the one slow node takes for each input."""
    skew: float = 1.0
    log_down_every: int = 0
    log_down_for: int = 0

    def names(self) -> str:
        """The faults that are on, for the head of a trace."""
        on = [
            ("loose network", self.loose),
            (f"loss {self.loss:.2%}", self.loss),
            (f"duplication {self.duplication:.1%}", self.duplication),
            (f"stragglers {self.stragglers:.1%}", self.stragglers),
            (f"partitions every {self.partition_every / SECOND:.2f}s", self.partition_every),
            ("one-way", self.partition_every and self.one_way),
            ("flapping", self.partition_every and self.flapping),
            (f"crashes every {self.crash_every / SECOND:.2f}s", self.crash_every),
            ("power cuts", self.crash_every and self.power_cut),
            (f"ambush {self.ambush:.1%}", self.ambush),
            ("lost disks", self.disk_loss),
            (f"slow disk {self.slow_disk / MILLISECOND:.0f}ms", self.slow_disk),
            (f"pauses every {self.pause_every / SECOND:.2f}s", self.pause_every),
            (f"slow node {self.slow_node / MILLISECOND:.1f}ms", self.slow_node),
            (f"clock skew {self.skew:.2f}", self.skew > 1.0),
            (f"log outages every {self.log_down_every / SECOND:.2f}s", self.log_down_every),
        ]
        return ", ".join(name for name, is_on in on if is_on) or "none"


def draw(rng: Random, permits: Permits) -> FaultMix:
    """The mix of faults of one seed."""

    def maybe(permitted: object, chance: float = 0.5) -> bool:
        # The coin is tossed even for what is not permitted, so that permitting a fault in a scenario
        # leaves the other faults of a seed as they were.
        return rng.random() < chance and bool(permitted)

    def between(low: float, high: float) -> float:
        """Log-uniform: weak and strong faults are equally likely."""
        return float(low * (high / low) ** rng.random())

    loose = maybe(permits.loose)
    loss = between(0.001, 0.2) if maybe(permits.loss) else 0.0
    partitions, crashes = maybe(permits.partitions), maybe(permits.crashes, 0.6)
    pauses, outages = maybe(permits.pauses, 0.4), maybe(permits.log_outages, 0.4)
    return FaultMix(
        loose=loose,
        # On ordered links a loss breaks the connection, which costs far more than one message.
        loss=loss if loose else loss / 20,
        duplication=between(0.001, 0.2) if maybe(loose) else 0.0,
        delay=int(between(50, 3_000)),
        jitter=int(between(50, 10_000)),
        stragglers=between(0.001, 0.05) if maybe(True, 0.3) else 0.0,
        partition_every=int(between(200 * MILLISECOND, 3 * SECOND)) if partitions else 0,
        partition_for=int(between(20 * MILLISECOND, 2 * SECOND)),
        one_way=rng.random() if maybe(True) else 0.0,
        flapping=rng.random() * 0.5 if maybe(True, 0.3) else 0.0,
        crash_every=int(between(40 * MILLISECOND, 3 * SECOND)) if crashes else 0,
        down_for=int(between(MILLISECOND, SECOND)),
        power_cut=rng.random() if maybe(permits.power_cuts) else 0.0,
        ambush=between(0.005, 0.1) if maybe(permits.crashes, 0.3) else 0.0,
        disk_loss=rng.random() if maybe(permits.lost_disks) else 0.0,
        disk_latency=int(between(50, 5_000)),
        slow_disk=int(between(5_000, 200_000)) if maybe(True, 0.3) else 0,
        pause_every=int(between(200 * MILLISECOND, 3 * SECOND)) if pauses else 0,
        pause_for=int(between(10 * MILLISECOND, SECOND)),
        slow_node=int(between(200, 5_000)) if maybe(permits.pauses, 0.2) else 0,
        skew=1.0 + rng.random() * (permits.skew - 1.0) if maybe(permits.skew > 1.0) else 1.0,
        log_down_every=int(between(300 * MILLISECOND, 3 * SECOND)) if outages else 0,
        log_down_for=int(between(20 * MILLISECOND, SECOND)),
    )
