"""The messages between ZAB servers, and which of the two channels each belongs to (paper 3.2).

On the election mesh: votes, the EpochTable and CNX_READY. On the quorum star: everything between a follower
and its leader, inside an envelope `Quorum(link, seq, body)`. `link` names one attempt of one follower to
follow (never used twice, so nothing of an old attempt can be taken for the new one), `seq` counts each
direction from 0: a gap means that the connection lost something, and ends the attempt.
"""

from enum import IntEnum
from typing import Literal, TypeAlias

from msgspec import Struct

from lockstep.coordination.zab.epoch_table import EpochTable
from lockstep.coordination.zab.interface import ServerId, Zxid

Channel: TypeAlias = Literal["election", "quorum"]
LIFE_SHIFT, ID_SHIFT = 20, 12
"""A link's id is its follower's incarnation and server id, shifted by these, plus a count."""


class State(IntEnum):
    LOOKING = 0
    FOLLOWING = 1
    LEADING = 2


class Standing(IntEnum):
    """What a server knows of its own past."""

    BLANK = 0
    """Its disk is empty: a new server, or one that lost everything."""
    FORGETFUL = 1
    """It has its disk, and lost the epochs that were in memory only."""
    SOUND = 2


class Vote(Struct, frozen=True, order=True):
    """Larger wins, compared as (epoch, zxid, leader): ZooKeeper's order."""

    epoch: int
    zxid: Zxid
    leader: ServerId


class Notification(Struct, frozen=True, tag="notification"):
    """A vote, with the sender's logical clock (election round) and state."""

    round: int
    vote: Vote
    state: State
    epoch: int
    """The epoch that the sender leads or follows; 0 while looking."""


class TableNotice(Struct, frozen=True, tag="table"):
    """The EpochTable flood, and the question of a server without memory (`standing` below SOUND)."""

    round: int
    table: EpochTable
    standing: Standing
    question: bool
    """The receiver shall answer with its own."""
    nonce: int
    """Names the asker's life; the answer repeats it."""


class CnxReady(Struct, frozen=True, tag="cnx-ready"):
    """QCN: the leader of `round` accepts quorum connections."""

    round: int


class TableUpdate(Struct, frozen=True, tag="table-update"):
    """DEP: step one of the leader's two-step commit of a new EpochTable."""

    link: int
    table: EpochTable


class TableAck(Struct, frozen=True, tag="table-ack"):
    """DEP: step two: the follower of `link` has committed the table of that version."""

    link: int
    version: int
    lives: dict[ServerId, int]
    """The latest life of each server that has asked the sender as one without memory."""


class FollowerInfo(Struct, frozen=True, tag="follower-info"):
    accepted: int
    voting: bool
    """False for a server that lost its disk: it counts only once it is synchronised."""


class Refused(Struct, frozen=True, tag="refused"):
    """The receiver of a FollowerInfo does not lead (yet)."""


class LeaderInfo(Struct, frozen=True, tag="leader-info"):
    epoch: int


class AckEpoch(Struct, frozen=True, tag="ack-epoch"):
    counts: bool
    """False if this epoch had been accepted before: the follower may join it, not help to found it."""
    current: int
    last: Zxid
    committed: Zxid
    tails: tuple[Zxid, ...]
    """The last zxid of each epoch in the follower's history, newest first: finds the common prefix."""


class Diff(Struct, frozen=True, tag="diff"):
    """Transactions from `zxid` on, part of a synchronisation."""

    zxid: Zxid
    txns: tuple[bytes, ...]


class Trunc(Struct, frozen=True, tag="trunc"):
    """Forget everything after `zxid`."""

    zxid: Zxid


class Snap(Struct, frozen=True, tag="snap"):
    """A piece of the application's state after `zxid`."""

    zxid: Zxid
    data: bytes
    last: bool


class NewLeader(Struct, frozen=True, tag="new-leader"):
    epoch: int
    in_doubt: bool
    """Some of the history may not be committed yet: service waits until a quorum has the epoch on disk."""


class AckNewLeader(Struct, frozen=True, tag="ack-new-leader"):
    """The history of the new leader is here, and on disk as far as it was sent."""

    last: Zxid
    lives: dict[ServerId, int]


class UpToDate(Struct, frozen=True, tag="up-to-date"):
    committed: Zxid


class Proposal(Struct, frozen=True, tag="proposal"):
    zxid: Zxid
    txns: tuple[bytes, ...]


class Ack(Struct, frozen=True, tag="ack"):
    """Everything up to `zxid`, and the epoch, is on disk here."""

    zxid: Zxid


class Commit(Struct, frozen=True, tag="commit"):
    zxid: Zxid


class Ping(Struct, frozen=True, tag="ping"):
    pass


class Forwarded(Struct, frozen=True, tag="forwarded"):
    """An application's payload, in either direction."""

    payload: bytes


Body: TypeAlias = (
    FollowerInfo
    | Refused
    | LeaderInfo
    | AckEpoch
    | Diff
    | Trunc
    | Snap
    | NewLeader
    | AckNewLeader
    | UpToDate
    | Proposal
    | Ack
    | Commit
    | Ping
    | Forwarded
)


class Quorum(Struct, frozen=True, tag="quorum"):
    """The envelope of the quorum channel."""

    link: int
    seq: int
    body: Body


ElectionMessage: TypeAlias = Notification | TableNotice | CnxReady | TableUpdate | TableAck
MESSAGE: TypeAlias = ElectionMessage | Quorum


def channel(message: MESSAGE) -> Channel:
    return "quorum" if isinstance(message, Quorum) else "election"


def opens(message: MESSAGE) -> bool:
    """Whether the host dials a quorum connection for this message (rule 10 of `interface`)."""
    return isinstance(message, Quorum) and isinstance(message.body, FollowerInfo)
