"""The sides of the coordination bench: our ensemble in each variant, and ZooKeeper, under one set of names.

Every side is an `Ensemble` of processes on this machine. Ours run through `coordination_server`, which writes
down when a server begins to look, has decided and serves; ZooKeeper's own log says the same. Ports are taken
below the range from which the kernel picks the near end of a connection: a killed server's port must be there
when it comes back.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from lockstep import process
from lockstep.coordination import membership
from lockstep.coordination.ensemble import Ensemble
from lockstep.errors import LockstepError

TICK_MS = 250
SYNC_SECONDS = 60.0
SideName = Literal["vanilla", "rtzk-l", "rtzk", "zookeeper"]
SIDES: tuple[SideName, ...] = ("vanilla", "rtzk-l", "rtzk", "zookeeper")
T = TypeVar("T")
Moment = Literal["looking", "decided", "serving", "following"]


@dataclass(frozen=True)
class Mark:
    """What a server became, and when (time.monotonic)."""

    at: float
    server: int
    moment: Moment


class Side(Ensemble):
    """An ensemble that can be asked for its marks and be killed without waiting for the body."""

    name: str

    def __init__(
        self, name: str, folder: Path, *, servers: int, variant: str = "rtzk", tick_ms: int = TICK_MS
    ) -> None:
        super().__init__(folder, servers=servers, tick_ms=tick_ms, variant=variant)
        self.name = name
        self.tick_ms = tick_ms

    def strike(self, server: int) -> float:
        """kill -9, without waiting; returns when. `bury` must follow."""
        pid = self.pid(server)
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return at

    def bury(self, server: int) -> None:
        """Reap what `strike` killed."""
        self.kill(server)

    def wait_in_sync(self, seconds: float = SYNC_SECONDS) -> int:
        """Wait until all servers are there and hold the same history; returns the leader."""
        deadline = time.monotonic() + seconds
        while True:
            figures = {server: self.figures(server) for server in self.members}
            if (leader := in_sync(figures)) is not None:
                return leader
            if time.monotonic() > deadline:
                states = {server: one.get("zk_server_state", "?") for server, one in figures.items()}
                raise LockstepError(
                    f"{self.name}: not in sync after {seconds:.0f} s: {states}",
                    hint=f"the servers' logs are in {self.folder}",
                )
            time.sleep(0.02)

    def marks(self, since: float) -> list[Mark]:
        raise LockstepError(f"{self.name} keeps no marks")


class OurSide(Side):
    """Our servers, with marks; `slow_disk` seconds are added to every write to disk."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        servers: int,
        variant: str = "rtzk",
        slow_disk: float = 0.0,
        tick_ms: int = TICK_MS,
    ) -> None:
        super().__init__(name, folder, servers=servers, variant=variant, tick_ms=tick_ms)
        self._variant = variant
        self._slow_disk = slow_disk

    def start_server(self, server: int) -> None:
        command = [sys.executable, "-m", "lockstep.bench.coordination_server", str(server)]
        command += [membership.format_list(self.members), str(self.folder / str(server)), self._variant]
        command += [str(self.tick_ms), str(self._slow_disk), str(self._marks_file(server))]
        self._processes[server] = process.launch(command, log=self.folder / f"server-{server}.log")

    def marks(self, since: float) -> list[Mark]:
        found = []
        for server in self.members:
            path = self._marks_file(server)
            for line in path.read_text().splitlines() if path.exists() else ():
                at, _, moment = line.partition(" ")
                if float(at) >= since and moment:
                    found.append(Mark(float(at), server, moment))  # type: ignore[arg-type]
        return sorted(found, key=lambda mark: mark.at)

    def _marks_file(self, server: int) -> Path:
        return self.folder / f"marks-{server}"


def in_sync(figures: dict[int, dict[str, str]]) -> int | None:
    """The leader, if every server serves and has applied the same; from what each answered to `mntr`."""
    states = {server: one.get("zk_server_state") for server, one in figures.items()}
    leaders = [server for server, state in states.items() if state in ("leader", "standalone")]
    if len(leaders) != 1 or any(
        state not in ("leader", "standalone", "follower") for state in states.values()
    ):
        return None
    leader = figures[leaders[0]]
    if float(leader.get("zk_synced_followers", len(figures) - 1)) < len(figures) - 1:
        return None
    if len({one["zk_last_zxid"] for one in figures.values() if "zk_last_zxid" in one}) > 1:
        return None
    return leaders[0]


def on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run the client's side of a measurement on the quick event loop that our servers use too."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
