"""Brings a follower to the leader's history: DIFF, TRUNC or SNAP, then NEWLEADER (paper 2.2, figure 5)."""

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.interface import SnapshotReady, SnapshotWanted, Zxid
from lockstep.coordination.zab.link import LeaderLink
from lockstep.coordination.zab.messages import Diff, NewLeader, Snap, Trunc


class Synchroniser:
    """One leader's; `epoch` and `in_doubt` are set once they are known."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.epoch = 0
        self.in_doubt = True
        self._waiting: dict[int, LeaderLink] = {}

    def bring_up(self, link: LeaderLink) -> None:
        """Send what the follower lacks, then NEWLEADER; from then on it gets every proposal."""
        assert link.report is not None
        shared = self.core.history.common(link.report.tails)
        if shared is None:
            self._waiting[link.id] = link
            self.core.deliver(SnapshotWanted(link.id))
            return
        if shared < link.report.last:
            link.send(Trunc(shared))
        self.send_after(link, shared)

    def on_snapshot_ready(self, ready: SnapshotReady) -> LeaderLink | None:
        """Send the application's state. Returns the link that must be given up if there is none to send."""
        link = self._waiting.pop(ready.token, None)
        if link is None:
            return None
        if ready.blob is None or ready.zxid < self.core.history.start:
            return link
        chunk = self.core.settings.snapshot_chunk
        for at in range(0, max(1, len(ready.blob)), chunk):
            link.send(Snap(ready.zxid, ready.blob[at : at + chunk], at + chunk >= len(ready.blob)))
        self.send_after(link, ready.zxid)
        return None

    def send_after(self, link: LeaderLink, zxid: Zxid) -> None:
        limit = self.core.settings.batch_limit
        for first, txns in self.core.history.after(zxid):
            for at in range(0, len(txns), limit):
                link.send(Diff(first + at, txns[at : at + limit]))
        link.send(NewLeader(self.epoch, self.in_doubt))
        link.streaming = True

    def forget(self, link: LeaderLink) -> None:
        self._waiting.pop(link.id, None)
