"""What stands above and below the ZAB machine: its commands, its deliveries, its channels, its records.

The application (the ZooKeeper service of one server) and the machine talk like this:

1. The machine delivers its role: `Looking`, `Following(leader, epoch)`, `Leading(epoch)`. Only a server that
   follows or leads serves; everything that was committed before is delivered before the role is.
2. A server hands a client's write to `ToLeader(payload)`. It arrives at the leader's application as
   `Request(origin, payload)`, in the order in which the origin sent it, or it is lost when the leader is.
   At the leader itself `ToLeader` is delivered at once. While looking, the command is answered with
   `Reply(client, request, NotServing())`; otherwise it has no reply.
3. The leader's application turns requests into idempotent transactions (as ZooKeeper's PrepRequestProcessor
   does, against its state plus what it has proposed and not yet seen committed) and issues
   `Propose(txns, epoch)`; several transactions in one `Propose` share one message, one write, one
   acknowledgement. The leader answers `Reply(client, request, Proposed(zxid))` with the first one's zxid
   (the others follow without a gap), or `NotServing()` if `epoch` is no longer led: nothing was proposed.
4. Every server delivers `Committed(zxid, txns)`: `txns[i]` has the zxid `zxid + i`. All servers deliver the
   same transactions in the same order; the zxids of one epoch have no gap.
5. `ToServer(server, payload)` at the leader arrives as `FromLeader(payload)` at a follower, behind all that
   the leader committed to it before (enough for `sync`, session touches and the like).

Snapshots belong to the application; the machine keeps only a short `reference` to one in its history (a file
name and checksum, or the whole blob in a small application):

6. `Checkpoint(zxid, reference)`: the application has stored, durably, its state after `zxid` (which it has
   been given): the machine may forget the history up to there. No reply.
7. `Restore(zxid, reference)` is delivered at the start (if there was a checkpoint) and after a
   synchronisation by snapshot: the application replaces its whole state. Transactions after it follow.
   The application starts empty if the first thing it is given is not a `Restore`.
8. `SnapshotWanted(token)` at a leader: a follower is too far behind. The application answers, now or
   later, with `SnapshotReady(token, zxid, blob)`: its state after the last transaction it was given. It may
   answer `blob=None` if it cannot; the follower then tries again later.
9. `StoreSnapshot(token, zxid, blob)` at that follower: the application stores the blob durably and answers
   `SnapshotStored(token, reference)`; the machine then makes it part of its history and delivers `Restore`.

What a host must know:

10. There are two channels between two servers: the election mesh, always open, and the quorum star, opened
    by a follower to its leader. `messages.channel(message)` says which one a message belongs to. A
    quorum message goes over the open quorum connection of the two; if there is none, `FollowerInfo` opens
    one (the sender dials), and any other is dropped. A host closes every quorum connection of a server that
    delivers `Looking`, the one to a server that it delivers `Dropped(server)` for, and keeps the election
    mesh. A second `FollowerInfo` from a peer replaces the first one's connection.
11. `on_peer("election:2", up)` and `on_peer("quorum:2", up)` report the two kinds of connection. A plain
    `on_peer("2", up)` (a host with one connection per pair, as the simulator's) stands for both. A quorum
    connection that cannot be opened is reported with `up=False`.
12. Node ids are the decimal server ids ("1" to "255"). The `incarnation` given to the machine must be
    larger after each start (the start time in milliseconds does; below 2^43).
13. Durable records (`records.RECORD`) are kept in the order of `Persist`. Once a `Checkpointed` record is
    durable, the host may drop every record before it except `Logged` ones that reach beyond its zxid, and the
    `Truncated` ones that cut those; the simplest host keeps all. `Compact` replaces everything.
"""

from typing import TypeAlias

from msgspec import Struct

ServerId: TypeAlias = int
Zxid: TypeAlias = int
"""64 bits as in ZooKeeper: the epoch above, the count within the epoch (from 1) below."""

COUNTER_BITS = 32
COUNTER_MASK = (1 << COUNTER_BITS) - 1


def zxid_of(epoch: int, counter: int) -> Zxid:
    return epoch << COUNTER_BITS | counter


def epoch_of(zxid: Zxid) -> int:
    return zxid >> COUNTER_BITS


def counter_of(zxid: Zxid) -> int:
    return zxid & COUNTER_MASK


# Commands: what the application asks of the machine, through `on_command`.


class ToLeader(Struct, frozen=True, tag="to-leader"):
    """Hand a payload to the leader's application; see `Request`."""

    payload: bytes


class Propose(Struct, frozen=True, tag="propose"):
    """At the leader of `epoch`: append these transactions to the one history."""

    txns: tuple[bytes, ...]
    epoch: int


class ToServer(Struct, frozen=True, tag="to-server"):
    """At the leader: hand a payload to one server's application (itself included); see `FromLeader`."""

    server: ServerId
    payload: bytes


class Checkpoint(Struct, frozen=True, tag="checkpoint"):
    """The application's state after `zxid` is durable under `reference`."""

    zxid: Zxid
    reference: bytes


class SnapshotReady(Struct, frozen=True, tag="snapshot-ready"):
    """The answer to `SnapshotWanted`: the state after `zxid`, the last transaction delivered."""

    token: int
    zxid: Zxid
    blob: bytes | None


class SnapshotStored(Struct, frozen=True, tag="snapshot-stored"):
    """The answer to `StoreSnapshot`: the blob is durable under `reference`."""

    token: int
    reference: bytes


Command: TypeAlias = ToLeader | Propose | ToServer | Checkpoint | SnapshotReady | SnapshotStored


# Results: what a `Reply` carries.


class NotServing(Struct, frozen=True, tag="not-serving"):
    """This server neither follows nor leads (or no longer leads that epoch); nothing was done."""


class Proposed(Struct, frozen=True, tag="proposed"):
    """The zxid of the first transaction of a `Propose`. It is not committed yet."""

    zxid: Zxid


Result: TypeAlias = NotServing | Proposed


# Deliveries: what the machine hands to the application and its host, through `Deliver`.


class Looking(Struct, frozen=True, tag="looking"):
    """No leader is known. Stop serving; keep the clients. The host closes the quorum connections."""

    reason: str


class Decided(Struct, frozen=True, tag="decided"):
    """The election is over for this server: it recovers, with `leader`. For people and metrics."""

    leader: ServerId


class Following(Struct, frozen=True, tag="following"):
    """This server follows `leader` in `epoch` and is up to date."""

    leader: ServerId
    epoch: int


class Leading(Struct, frozen=True, tag="leading"):
    """This server leads `epoch`; all of its history is delivered. Reset session deadlines."""

    epoch: int


class Committed(Struct, frozen=True, tag="committed"):
    """`txns[i]` is the transaction `zxid + i`; apply them in order."""

    zxid: Zxid
    txns: tuple[bytes, ...]


class Request(Struct, frozen=True, tag="request"):
    """At the leader: what a server gave to `ToLeader`."""

    origin: ServerId
    payload: bytes


class FromLeader(Struct, frozen=True, tag="from-leader"):
    """At a follower: what the leader gave to `ToServer`."""

    payload: bytes


class Restore(Struct, frozen=True, tag="restore"):
    """Replace the whole state by the one that `reference` names: the state after `zxid`."""

    zxid: Zxid
    reference: bytes


class SnapshotWanted(Struct, frozen=True, tag="snapshot-wanted"):
    token: int


class StoreSnapshot(Struct, frozen=True, tag="store-snapshot"):
    token: int
    zxid: Zxid
    blob: bytes


class Dropped(Struct, frozen=True, tag="dropped"):
    """For the host: close the quorum connection with `server`."""

    server: ServerId


Delivery: TypeAlias = (
    Looking
    | Decided
    | Following
    | Leading
    | Committed
    | Request
    | FromLeader
    | Restore
    | SnapshotWanted
    | StoreSnapshot
    | Dropped
)
