"""Bugs on purpose: each breaks one rule of the protocol, to prove that the simulator would notice.

Nothing but the simulator's `--bug` and the tests use these.
"""

from collections.abc import Sequence

from msgspec import Struct

from lockstep.coordination.zab.core import Core, Then
from lockstep.coordination.zab.election import Election
from lockstep.coordination.zab.follower import Follower, Stage
from lockstep.coordination.zab.interface import Proposed, Zxid
from lockstep.coordination.zab.leader import Leader, Phase
from lockstep.coordination.zab.link import LeaderLink
from lockstep.coordination.zab.messages import Ack, AckEpoch, Commit, Standing, Vote
from lockstep.coordination.zab.records import RECORD
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import Variant
from lockstep.coordination.zab.synchroniser import Synchroniser


class Planted(Struct, frozen=True):
    server: type[Server]
    variant: Variant | None = None
    """The variant in which it can show; None: any."""


class _AckingFollower(Follower):
    def _on_proposal(self, zxid: Zxid, txns: tuple[bytes, ...]) -> None:
        if self.core.history.continues(zxid) and self.stage is not Stage.STORING:
            self.core.log(zxid, txns)
            self._send(Ack(zxid + len(txns) - 1))
        else:
            super()._on_proposal(zxid, txns)


class _AckingLeader(Leader):
    def propose(self, txns: tuple[bytes, ...], epoch: int) -> Proposed | None:
        proposed = super().propose(txns, epoch)
        if proposed is not None:
            self._on_logged(self.core.history.last)
        return proposed


class AckBeforePersist(Server):
    """Leader and followers acknowledge a proposal that is not on their disks yet."""

    leader_class = _AckingLeader
    follower_class = _AckingFollower


class _EagerFollower(Follower):
    def _take_over(self) -> None:
        core = self.core
        if self._truncate is not None:
            core.truncate(self._truncate)
        for zxid, txns in self._diff:
            if core.history.continues(zxid):
                core.log(zxid, txns)
        core.enter(self.epoch)
        core.persist_epochs()
        self.stage = Stage.SYNCHRONISED
        self._acknowledge_durable(core.history.last)


class SyncBeforePersist(Server):
    """NEWLEADER is acknowledged before the synchronised transactions are on disk."""

    follower_class = _EagerFollower


class _AmnesiacCore(Core):
    def persist_epochs(self, then: Then | None = None) -> None:
        if then is not None:
            self.when_history_durable(then)


class EpochNotPersisted(Server):
    """Without DEP, epochs must be on disk; here they are only in memory."""

    core_class = _AmnesiacCore


class _PlainCore(_AmnesiacCore):
    def recover(self, records: Sequence[RECORD]) -> None:
        super().recover(records)
        if self.voting:
            self.standing = Standing.SOUND

    def cover(self, epoch: int, then: Then) -> None:
        then()

    def _reserve(self, epoch: int, then: Then | None = None) -> None:
        if then is not None:
            then()


class PlainDep(Server):
    """DEP as the paper has it: epochs in a quorum's memory and nowhere else, no abstention, no ceiling."""

    core_class = _PlainCore


class _UncuttingSynchroniser(Synchroniser):
    def bring_up(self, link: LeaderLink) -> None:
        assert link.report is not None
        shared = self.core.history.common(link.report.tails)
        if shared is None:
            super().bring_up(link)
        else:
            self.send_after(link, shared)


class _UncuttingLeader(Leader):
    synchroniser_class = _UncuttingSynchroniser


class _UnsurprisedFollower(Follower):
    def _take_over(self) -> None:
        self._diff = [(zxid, txns) for zxid, txns in self._diff if self.core.history.continues(zxid)]
        super()._take_over()


class TruncSkipped(Server):
    """A follower keeps the transactions that the new leader does not have."""

    leader_class = _UncuttingLeader
    follower_class = _UnsurprisedFollower


class _HastyLeader(Leader):
    def _on_logged(self, zxid: Zxid) -> None:
        super()._on_logged(zxid)
        self.core.commit(zxid)
        for link in self.links.values():
            if link.up_to_date:
                link.send(Commit(zxid))


class CommitWithoutQuorum(Server):
    """The leader commits what is on its own disk."""

    leader_class = _HastyLeader


class _ZxidElection(Election):
    def _initial(self) -> Vote:
        return Vote(0, self.core.history.last, self.core.me)


class _ZxidLeader(Leader):
    def _behind(self, report: AckEpoch) -> bool:
        return report.current < self.epoch and report.last > self._entered_as[1]


class VoteIgnoresEpoch(Server):
    """Votes and discovery compare zxids alone: ZAB before 1.0 (the paper's footnote 1)."""

    election_class = _ZxidElection
    leader_class = _ZxidLeader


class _StubbornLeader(Leader):
    def _behind(self, report: AckEpoch) -> bool:
        return False


class LeaderNeverStepsBack(Server):
    """A leader goes on although a follower is more up to date: safety then rests on the finalize wait."""

    leader_class = _StubbornLeader


class _IdElection(Election):
    def _initial(self) -> Vote:
        return Vote(0, 0, self.core.me)


class ElectById(Server):
    """The largest id is elected whatever it knows, and discovery does not mind."""

    election_class = _IdElection
    leader_class = _StubbornLeader


class _ConfidentLeader(Leader):
    def _found(self) -> None:
        self._settled = True
        self.phase = Phase.FOUNDED
        self.core.commit(self.core.history.last)
        self._serve_if_settled()


class InheritedAtOnce(Server):
    """DEP: what was inherited is committed before the epoch is on a quorum's disks."""

    leader_class = _ConfidentLeader


class _CarelessCore(Core):
    def recover(self, records: Sequence[RECORD]) -> None:
        super().recover(records)
        self.voting = True
        if self.standing is Standing.BLANK:
            self.standing = Standing.SOUND


class WipedServerVotes(Server):
    """A server that lost its disk votes at once."""

    core_class = _CarelessCore


BUGS: dict[str, Planted] = {
    "ack-before-persist": Planted(AckBeforePersist),
    "sync-before-persist": Planted(SyncBeforePersist),
    "epoch-not-persisted": Planted(EpochNotPersisted, "rtzk-l"),
    "plain-dep": Planted(PlainDep, "rtzk"),
    "trunc-skipped": Planted(TruncSkipped),
    "commit-without-quorum": Planted(CommitWithoutQuorum),
    "vote-ignores-epoch": Planted(VoteIgnoresEpoch),
    "leader-never-steps-back": Planted(LeaderNeverStepsBack),
    "elect-by-id": Planted(ElectById),
    "inherited-at-once": Planted(InheritedAtOnce, "rtzk"),
    "wiped-server-votes": Planted(WipedServerVotes),
}
