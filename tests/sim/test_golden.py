"""A transcript that a person can read as a story, compared with the committed one.

After a change that is meant to change it: LOCKSTEP_GOLDEN=write pytest tests/sim/test_golden.py, then read
the difference.
"""

import os
from pathlib import Path
from random import Random

from lockstep.protocol.machine import ClientId, Machine, Message, NodeId
from lockstep.sim.faults import MILLISECOND, FaultMix
from lockstep.sim.history import History
from lockstep.sim.replog.messages import Get, Put
from lockstep.sim.replog.node import LogNode
from lockstep.sim.replog.scenario import ReplicatedLog
from lockstep.sim.runner import report, run_seed
from lockstep.sim.world import World

GOLDEN = Path(__file__).parent / "golden" / "replog-leader-crash.txt"
QUIET = FaultMix(delay=1_000, jitter=0, disk_latency=500)


class LeaderCrash(ReplicatedLog):
    """A write; the leader crashes; a read at the new leader; the old one comes back and catches up."""

    duration = 900 * MILLISECOND
    calm_at = 880 * MILLISECOND

    def __init__(self, rng: Random, bug: str | None = None) -> None:
        super().__init__(rng, bug)
        self.nodes = ["n1", "n2", "n3"]
        self.client_count = 1
        self.think_time = 200 * MILLISECOND

    def machine(self, node: NodeId) -> Machine:
        return LogNode(node, self.nodes, heartbeat=0.08, patience=0.2)

    def command(self, client: ClientId, request: int, rng: Random) -> Message | None:
        return {1: Put("x", "first"), 2: Get("x")}.get(request)

    def begin(self, world: World) -> None:
        super().begin(world)
        world.at(300 * MILLISECOND, self._crash_leader)

    def _crash_leader(self) -> None:
        assert self.world is not None
        for name, node in self.world.nodes.items():
            if isinstance(node.machine, LogNode) and node.machine.leader == name:
                self.world.crash(name)
                self.world.after(400 * MILLISECOND, self.world.start, name)

    def settled(self, history: History) -> bool:
        return False


def test_the_story_of_a_leader_crash_reads_as_it_always_did() -> None:
    outcome = run_seed(LeaderCrash, 7, trace=True, faults=QUIET)
    assert not outcome.violations
    told = report(outcome, "replog", last=None)
    if os.environ.get("LOCKSTEP_GOLDEN") == "write":
        GOLDEN.write_text(told)
    assert told == GOLDEN.read_text()
