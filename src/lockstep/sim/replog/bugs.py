"""Mistakes that can be planted in the replicated log, one at a time, to prove that the checkers see them.

Only tests and `lockstep sim replog --bug NAME` pass one; nothing else ever does.
"""

from enum import StrEnum


class Bug(StrEnum):
    NO_FSYNC = "no-fsync"
    """Entries are kept in memory and treated as if they were on disk."""
    ACK_BEFORE_PERSIST = "ack-before-persist"
    """A follower confirms entries while they are still on their way to its disk."""
    STALE_EPOCH = "stale-epoch"
    """A follower takes entries from a leader whose epoch is over."""
    DEDUP_OFF_BY_ONE = "dedup-off-by-one"
    """A command that repeats the client's newest request is executed again."""
    SMALL_QUORUM = "small-quorum"
    """Half of the nodes are taken for a majority."""
    FORGOTTEN_VOTE = "forgotten-vote"
    """Epochs and votes are not written down, so that a node can vote twice in an epoch."""
    VOTE_FOR_ANYONE = "vote-for-anyone"
    """A node votes without asking whether the candidate's log is as complete as its own."""
    WRONG_SUFFIX = "wrong-suffix"
    """The cut begins one entry too late: the entry that conflicts stays, and counts as the leader's."""
    REPLY_BEFORE_COMMIT = "reply-before-commit"
    """The leader answers as soon as the command is in its own log."""
    LOCAL_READ = "local-read"
    """The leader answers reads from its own copy without asking whether it still leads."""
    NO_RETRANSMISSION = "no-retransmission"
    """What was sent once is never sent again."""
    BLIND_COMMIT = "blind-commit"
    """A follower takes the leader's commit position for its own log without checking that they match."""
