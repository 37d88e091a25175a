"""Leader kills: the time from kill -9 until a write that was sent afterwards is acknowledged.

One client of ours on every side (it speaks ZooKeeper's protocol), new for each kill, connected to whichever
server it came to, the leader included. It is impatient on every side: another server at once, then one
every 50 ms. The kill comes between two writes at a random phase of the heartbeats. After it the dead server is
started again, and the next kill waits until all servers say that they hold the same history.

Phases, as far as the servers' marks tell them: **detection** (kill until the next leader looks), **election**
(until it has decided), **recovery** (until it serves), **answer** (until the client has its acknowledgement).
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lockstep.bench.coordination_sides import TICK_MS, Mark, Side, on_loop
from lockstep.coordination.client import Client
from lockstep.coordination.errors import ConnectionLoss, CoordinationError
from lockstep.errors import LockstepError
from lockstep.observe.percentiles import percentile

PATH = "/bench-kill"
VALUE = b"v" * 100
ANSWER_SECONDS = 60.0
PHASES = ("detection", "election", "recovery", "answer")


@dataclass(frozen=True)
class Kill:
    """One kill; times in milliseconds."""

    took: float
    on_leader: bool
    """Whether the client was connected to the server that was killed."""
    phases: dict[str, float] = field(default_factory=dict)
    notices: tuple[float, ...] = ()
    """How long each survivor took to notice."""


def block(side: Side, kills: int, rng: random.Random, done: Callable[[], None]) -> list[Kill]:
    """Start the side, kill its leader so many times, stop it."""
    found = []
    with side:
        for _ in range(kills):
            leader = side.wait_in_sync()
            found.append(on_loop(_kill(side, leader, rng.uniform(0.0, 0.3))))
            side.bury(leader)
            side.start_server(leader)
            done()
    return found


async def _kill(side: Side, leader: int, pause: float) -> Kill:
    async with Client(side.connect_string, timeout=20 * TICK_MS / 1000) as client:
        await client.ensure(PATH)
        await asyncio.sleep(pause)
        await client.set(PATH, VALUE)
        on_leader = client.server == str(side.members[leader].client)
        killed = side.strike(leader)
        async with asyncio.timeout(ANSWER_SECONDS):
            await _write(client)
        answered = time.monotonic()
        marks = side.marks(killed)
        return Kill(
            (answered - killed) * 1000,
            on_leader,
            phases_of(marks, killed, answered),
            tuple(notices_of(marks, killed)),
        )


async def _write(client: Client) -> None:
    """A setData without a version may safely be sent again after a lost connection."""
    while True:
        try:
            await client.set(PATH, VALUE)
            return
        except ConnectionLoss:
            continue
        except CoordinationError as error:
            raise LockstepError(f"the client met: {error}", hint="see the servers' logs") from error


def phases_of(marks: Sequence[Mark], killed: float, answered: float) -> dict[str, float]:
    """The phases of one recovery, from the view of the server that leads in the end; in milliseconds."""
    serving = [mark for mark in marks if mark.moment == "serving" and mark.at <= answered + 0.001]
    if not serving:
        return {}
    last = serving[-1]
    own = [mark for mark in marks if mark.server == last.server and mark.at <= last.at]
    looking = [mark.at for mark in own if mark.moment == "looking"]
    decided = [mark.at for mark in own if mark.moment == "decided"]
    if not looking or not decided:
        return {}
    points = (killed, looking[0], decided[-1], last.at, answered)
    return {name: (b - a) * 1000 for name, (a, b) in zip(PHASES, pairwise(points), strict=True)}


def notices_of(marks: Sequence[Mark], killed: float) -> list[float]:
    """Seconds until each survivor noticed."""
    first: dict[int, float] = {}
    for mark in marks:
        if mark.moment == "looking":
            first.setdefault(mark.server, mark.at - killed)
    return list(first.values())


def summary(kills: Sequence[Kill]) -> dict[str, object]:
    """Percentiles in milliseconds: of the whole, of each phase, and by where the client was."""
    where = {
        "client_on_leader": [kill.took for kill in kills if kill.on_leader],
        "client_on_survivor": [kill.took for kill in kills if not kill.on_leader],
    }
    return {
        **spread([kill.took for kill in kills]),
        "phases": {
            name: spread([kill.phases[name] for kill in kills if name in kill.phases]) for name in PHASES
        },
        "where": {name: spread(values) for name, values in where.items()},
        "samples": [round(kill.took, 2) for kill in kills],
        "phase_samples": {
            name: [round(kill.phases[name], 2) for kill in kills if name in kill.phases] for name in PHASES
        },
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "median": round(percentile(values, 50), 2),
        "p95": round(percentile(values, 95), 2),
        "max": round(max(values), 2),
    }
