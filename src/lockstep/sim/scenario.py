"""How a protocol plugs into the simulator: subclass `Scenario`, add a line to `SCENARIOS`.

A scenario is made anew for every seed and may draw from the seed's generator (number of nodes, sizes).
It builds the machines, says which faults the protocol's promises must survive, makes the clients'
commands or whatever other input there is, and judges the history with checkers.
"""

import importlib
from collections.abc import Iterable
from random import Random
from typing import Any, ClassVar

from lockstep.errors import UsageError
from lockstep.protocol.machine import ClientId, Machine, Message, NodeId
from lockstep.sim.clients import Clients
from lockstep.sim.faults import MILLISECOND, SECOND, Permits
from lockstep.sim.history import History, Violation
from lockstep.sim.world import World

SCENARIOS: dict[str, str] = {
    "coordination": "lockstep.coordination.simulation:Coordination",
    "replog": "lockstep.sim.replog.scenario:ReplicatedLog",
    "liverobin": "lockstep.order.simulation:LiveRobin",
    "kazoo": "lockstep.order.simulation:KaZoo",
    "inband": "lockstep.order.inband_simulation:InBand",
    "logorder": "lockstep.sim.logorder:LogOrder",
}
"""Name on the command line -> module and class. Imported only when it is asked for."""


class Scenario:
    """One run of a protocol. Override what the protocol has; `nodes`, `machine` and `check` always."""

    title: ClassVar[str] = ""
    bugs: ClassVar[tuple[str, ...]] = ()
    """Names of planted bugs, for `--bug`: test-only proof that the checkers can see."""
    permits: Permits = Permits()
    duration: int = 8 * SECOND
    """Virtual time at which eventual promises must have come true."""
    calm_at: int = 3 * SECOND
    """Virtual time at which faults stop."""
    max_events: int = 500_000
    """A run with more inputs than this is a finding, too: messages that breed messages."""
    client_count: int = 0
    client_timeout: int = 250 * MILLISECOND
    think_time: int = 20 * MILLISECOND
    nodes: list[NodeId]

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        self.rng = rng
        self.bug = bug
        self.nodes = []
        self.world: World | None = None
        self.clients: Clients | None = None

    def machine(self, node: NodeId) -> Machine:
        """A machine for `node`, new at every start and restart."""
        raise LookupError(f"{type(self).__name__} builds no machine for {node}")

    def begin(self, world: World) -> None:
        """Called once before time starts: by default the clients begin. Schedule with `world.at`."""
        self.world = world
        self.clients = Clients(world, self)
        self.clients.begin()

    def command(self, client: ClientId, request: int, rng: Random) -> Message | None:
        """The client's next command; None: it has no more."""
        return None

    def redirect(self, result: Any) -> NodeId | None:
        """If `result` is no answer but "ask elsewhere": whom to ask (or "" for anyone)."""
        return None

    def settled(self, history: History) -> bool:
        """Asked after the calm, now and then: true ends the run early."""
        return False

    def check(self, history: History) -> Iterable[Violation]:
        """Judge the run."""
        return ()


def scenario_class(name: str) -> type[Scenario]:
    """The scenario that is registered as `name`."""
    if name not in SCENARIOS:
        raise UsageError(f"no protocol is called {name!r}", hint=f"choose one of: {', '.join(SCENARIOS)}")
    module, _, attribute = SCENARIOS[name].partition(":")
    found: type[Scenario] = getattr(importlib.import_module(module), attribute)
    return found
