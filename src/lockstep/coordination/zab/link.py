"""The leader's view of one follower: one attempt to follow, from FOLLOWERINFO until it ends."""

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.interface import ServerId, Zxid
from lockstep.coordination.zab.messages import LIFE_SHIFT, AckEpoch, Body


class LeaderLink:
    def __init__(self, core: Core, server: ServerId, id: int, *, voting: bool, accepted: int) -> None:
        self.core = core
        self.server = server
        self.id = id
        self.voting = voting
        self.accepted = accepted
        self.report: AckEpoch | None = None
        self.promised = False
        """This follower may help to found the epoch: it had not accepted it before, or has entered it."""
        self.table_acked = 0
        self.streaming = False
        """NEWLEADER is sent; proposals follow."""
        self.synchronised = False
        """NEWLEADER is acknowledged: this follower counts."""
        self.up_to_date = False
        """UPTODATE is sent; commits follow."""
        self.acked: Zxid = -1
        self.silent = 0
        self.lost = False
        self._next_out = 0
        self._next_in = 1  # FOLLOWERINFO was 0

    @property
    def life(self) -> int:
        """The incarnation of the follower that this link belongs to."""
        return self.id >> LIFE_SHIFT

    @property
    def may_promise(self) -> bool:
        """Whether this follower helps to found the epoch, or may yet turn out to."""
        return self.promised or (self.voting and self.report is None)

    def send(self, body: Body) -> None:
        self.core.send_quorum(self.server, self.id, self._next_out, body)
        self._next_out += 1

    def takes(self, seq: int) -> bool:
        """Whether a message is the next one; a gap means that the connection lost something."""
        self.silent = 0
        if seq != self._next_in:
            self.lost = self.lost or seq > self._next_in
            return False
        self._next_in += 1
        return True
