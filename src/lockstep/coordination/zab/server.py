"""One server of the ensemble: it looks for a leader, follows one, or leads (paper figure 2).

The machine against `lockstep.protocol.machine`; what stands above and below it is in `interface`.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.election import Election
from lockstep.coordination.zab.follower import Follower, Stage
from lockstep.coordination.zab.interface import (
    Checkpoint,
    Command,
    Decided,
    Looking,
    NotServing,
    Propose,
    Request,
    Restore,
    ServerId,
    SnapshotReady,
    SnapshotStored,
    ToLeader,
    ToServer,
)
from lockstep.coordination.zab.leader import Leader, Phase
from lockstep.coordination.zab.messages import (
    ID_SHIFT,
    LIFE_SHIFT,
    MESSAGE,
    Ack,
    AckEpoch,
    AckNewLeader,
    CnxReady,
    FollowerInfo,
    Notification,
    Quorum,
    Refused,
    Standing,
    State,
    TableAck,
    TableNotice,
    TableUpdate,
)
from lockstep.coordination.zab.records import RECORD
from lockstep.coordination.zab.settings import MAX_SERVERS, Settings
from lockstep.errors import UsageError
from lockstep.protocol.machine import ClientId, Effect, Machine, NodeId, Reply, Token

BEAT = "beat"


class Server(Machine):
    """A ZAB server. `incarnation` is larger after each start (rule 12 of `interface`)."""

    core_class: ClassVar[type[Core]] = Core
    election_class: ClassVar[type[Election]] = Election
    leader_class: ClassVar[type[Leader]] = Leader
    follower_class: ClassVar[type[Follower]] = Follower

    def __init__(
        self,
        me: ServerId,
        servers: Iterable[ServerId],
        settings: Settings | None = None,
        incarnation: int = 1,
    ) -> None:
        ensemble = sorted(set(servers))
        if (
            me not in ensemble
            or not 1 <= len(ensemble) <= MAX_SERVERS
            or not 1 <= ensemble[0] <= ensemble[-1] <= 255
        ):
            raise UsageError(
                f"server {me} cannot be part of the ensemble {ensemble}",
                hint=f"name 1 to {MAX_SERVERS} different server ids between 1 and 255, this server's among them",
            )
        self.core = self.core_class(me, ensemble, settings or Settings())
        self.incarnation = incarnation
        self._links = incarnation << LIFE_SHIFT | me << ID_SHIFT
        self.election: Election
        self.role: Leader | Follower | None = None
        self._ready: dict[ServerId, CnxReady] = {}

    # Inputs.

    def on_start(self, durable: Sequence[RECORD]) -> list[Effect]:
        core = self.core
        core.recover(durable)
        self.election = self.election_class(core, self.incarnation, self._decided)
        if core.history.reference is not None:
            core.deliver(Restore(core.history.checkpoint, core.history.reference))
        core.timer(BEAT, core.settings.beat)
        self._look("it has just started")
        return self._effects()

    def on_message(self, sender: NodeId, message: MESSAGE) -> list[Effect]:
        server = int(sender)
        match message:
            case Quorum():
                self._on_quorum(server, message)
            case Notification():
                self._on_notification(server, message)
            case TableNotice():
                self._on_table_notice(server, message)
            case TableUpdate():
                if isinstance(self.role, Follower) and self.role.leader == server:
                    self.role.on_table_update(message)
            case TableAck():
                if isinstance(self.role, Leader):
                    self.role.on_table_ack(server, message)
            case CnxReady():
                self._ready[server] = message
                if isinstance(self.role, Follower) and self.role.leader == server:
                    self.role.on_cnx_ready(message)
        return self._effects()

    def on_timer(self, name: str) -> list[Effect]:
        if name == BEAT:
            self.core.timer(BEAT, self.core.settings.beat)
            self.core.write_epochs()
            if self.role is not None:
                self.role.on_beat()
        else:
            self.election.on_timer(name)
            if self.role is not None:
                self.role.on_timer(name)
        return self._effects()

    def on_persisted(self, token: Token) -> list[Effect]:
        assert isinstance(token, int)
        self.core.persisted(token)
        return self._effects()

    def on_command(self, client: ClientId, request: int, command: Command) -> list[Effect]:
        role = self.role
        match command:
            case ToLeader(payload):
                if isinstance(role, Leader) and role.phase is Phase.BROADCAST:
                    self.core.deliver(Request(self.core.me, payload))
                elif not (isinstance(role, Follower) and role.forward(payload)):
                    self.core.out.append(Reply(client, request, NotServing()))
            case Propose(txns, epoch):
                proposed = role.propose(txns, epoch) if isinstance(role, Leader) else None
                self.core.out.append(Reply(client, request, proposed or NotServing()))
            case ToServer(server, payload):
                if isinstance(role, Leader):
                    role.to_server(server, payload)
            case Checkpoint(zxid, reference):
                self.core.checkpoint(zxid, reference)
            case SnapshotReady():
                if isinstance(role, Leader):
                    role.on_snapshot_ready(command)
            case SnapshotStored():
                if isinstance(role, Follower):
                    role.on_snapshot_stored(command)
        return self._effects()

    def on_peer(self, peer: NodeId, up: bool) -> list[Effect]:
        kind, _, name = peer.rpartition(":")
        server = int(name)
        if kind != "quorum":
            if up:
                self.election.on_up(server)
            elif isinstance(self.role, Follower) and self.role.leader == server and not self.role.link:
                self._look("the leader is gone")
        if kind != "election" and not up:
            match self.role:
                case Follower() as follower if follower.leader == server and follower.link:
                    follower.on_refused()
                case Leader() as leader:
                    leader.drop(server)
        return self._effects()

    # What this server is, for people and metrics.

    @property
    def state(self) -> State:
        match self.role:
            case Leader():
                return State.LEADING
            case Follower():
                return State.FOLLOWING
        return State.LOOKING

    @property
    def epoch(self) -> int:
        return self.role.epoch if self.role is not None else 0

    @property
    def synced_followers(self) -> int:
        """How many followers hold this leader's history and get everything that it commits."""
        links = self.role.links.values() if isinstance(self.role, Leader) else ()
        return sum(link.up_to_date for link in links)

    @property
    def phase(self) -> str:
        """What this server does just now, in the words of the paper's figure 2 and of the three roles."""
        match self.role:
            case Leader(phase=Phase.BROADCAST) | Follower(stage=Stage.FOLLOWING):
                return "broadcast"
            case Leader(phase=phase):
                return phase.name.lower()
            case Follower(stage=stage):
                return stage.value
        return f"election: {self.election.step.value}"

    # Roles.

    def _look(self, reason: str) -> None:
        if self.role is not None:
            self.role.stop()
            self.role = None
        self._ready.clear()
        self.core.deliver(Looking(reason))
        self.election.start()

    def _decided(self, leader: ServerId, ready: bool) -> None:
        round, vote = self.election.round, self.election.vote
        self.core.deliver(Decided(leader))
        if leader == self.core.me:
            self.role = self.leader_class(self.core, round, vote, self._look)
            self.role.start()
        else:
            self.role = self.follower_class(self.core, leader, round, vote, self._next_link, self._look)
            early = self._ready.get(leader)
            self.role.start(ready=ready or (early is not None and early.round == round))

    def _next_link(self) -> int:
        self._links += 1
        return self._links

    # Messages that any role may get.

    def _on_quorum(self, sender: ServerId, message: Quorum) -> None:
        match self.role, message.body:
            case Leader() as leader, FollowerInfo() as info:
                leader.on_follower_info(sender, message.link, info)
            case Leader() as leader, _ if sender in leader.links and leader.links[sender].id == message.link:
                leader.on_quorum(sender, message)
            case Follower() as follower, _ if follower.leader == sender and follower.link == message.link:
                follower.on_quorum(message)
            case _, FollowerInfo() | AckEpoch() | AckNewLeader() | Ack():
                self.core.send_quorum(sender, message.link, 0, Refused())

    def _on_notification(self, sender: ServerId, notification: Notification) -> None:
        if self.role is None:
            self.election.on_notification(sender, notification)
        elif notification.state is State.LOOKING:
            if isinstance(self.role, Follower) and self.role.is_left_by(sender, notification.round):
                self._look("the chosen leader looks for one itself")
                self.election.on_notification(sender, notification)
            else:
                self._on_looking(sender, notification.round)
        elif isinstance(self.role, Leader):
            self.role.on_epoch_seen(sender, notification.epoch)

    def _on_table_notice(self, sender: ServerId, notice: TableNotice) -> None:
        if notice.question and notice.standing is not Standing.SOUND:
            self.core.lives[sender] = max(notice.nonce, self.core.lives.get(sender, 0))
        self.election.on_table(sender, notice)
        if not notice.question:
            return
        self.core.send(sender, self.election.answer(notice.nonce))
        if isinstance(self.role, Follower) and self.role.is_left_by(sender, notice.round):
            self._look("the chosen leader looks for one itself")
        elif self.role is not None:
            self._on_looking(sender, notice.round)
        else:
            self.election.on_asked(sender)

    def _on_looking(self, sender: ServerId, round: int) -> None:
        """A peer looks for a leader while this server has one: say which."""
        if isinstance(self.role, Leader):
            self.role.on_looking(sender, round)
        if self.role is not None:
            self.core.send(sender, self.role.notification())

    def _effects(self) -> list[Effect]:
        out, self.core.out = self.core.out, []
        return out
