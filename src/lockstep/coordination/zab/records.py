"""What a ZAB server keeps on disk, as records of one append-only history.

The order of the records carries meaning: a crash leaves a prefix, so a `Logged` that survived proves that
every epoch record before it did too. Host rule 13 in `interface` says which ones may be dropped.
"""

from typing import TypeAlias

from msgspec import Struct

from lockstep.coordination.zab.interface import Zxid


class Member(Struct, frozen=True, tag="member"):
    """This server's disk belongs to the ensemble: it may vote. A wiped disk lacks it."""


class Logged(Struct, frozen=True, tag="logged"):
    """`txns[i]` is the accepted transaction `zxid + i`."""

    zxid: Zxid
    txns: tuple[bytes, ...]


class Truncated(Struct, frozen=True, tag="truncated"):
    """Every transaction after `zxid` is void (TRUNC)."""

    zxid: Zxid


class Epochs(Struct, frozen=True, tag="epochs"):
    """acceptedEpoch and currentEpoch. With DEP they are written off the critical path."""

    accepted: int
    current: int


class Ceiling(Struct, frozen=True, tag="ceiling"):
    """With DEP: this server has accepted no epoch above `epoch` (a reservation, made ahead of need)."""

    epoch: int


class Checkpointed(Struct, frozen=True, tag="checkpointed"):
    """The application's state after `zxid` is stored under `reference`; repeats all that is not a log."""

    zxid: Zxid
    reference: bytes
    accepted: int
    current: int
    ceiling: int
    member: bool


RECORD: TypeAlias = Member | Logged | Truncated | Epochs | Ceiling | Checkpointed
