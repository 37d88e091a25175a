"""Micro-batch at 42,000 events a second on two sites, one killed on the way: part of `lockstep bench failover`.

The **frontier** is the newest input that the clean output has answered for. It is behind by the age of that input
when the next answer comes: the worst of it over the run, the kill included, is the figure.
"""

import time
from pathlib import Path

from rich.console import Console

from lockstep.bench.load import Load
from lockstep.bench.sides import LockstepSide
from lockstep.errors import LockstepError

RATE = 42_000
WARM_SECONDS = 40.0
"""As long as two sites on two cores compile their code; of the same load, since a pause before the figures would
count as a frontier that stands."""


def measure(bootstrap_servers: str, folder: Path, quick: bool, console: Console) -> dict[str, float]:
    seconds = 30.0 if quick else 60.0
    side = LockstepSide("throughput", bootstrap_servers, folder, sites=2, engine="microbatch", batch_ms=500)
    with side:
        load = Load(bootstrap_servers, side.source, RATE, WARM_SECONDS + seconds, first=side.produced)
        began = time.monotonic()
        running = load.start(side.folder)
        while time.monotonic() < began + WARM_SECONDS + seconds / 2:
            side.check()
            time.sleep(0.05)
        killed = side.job.sites[0]
        side.job.kill(killed)
        count = running.wait()
        took = time.monotonic() - began
        if not side.probe.wait_for_newest(load.first + count - 1, 60, side.check):
            raise LockstepError("micro-batch: the last input was not answered within 60 s", hint=side.hint())
        behind = side.probe.frontier_behind_s(began + WARM_SECONDS, began + took)
    console.print(
        f"micro-batch: {count / took:,.0f} ev/s, {killed} killed half way, frontier at most {behind:.2f} s behind",
        highlight=False,
    )
    return {"rate": count / took, "behind_s": round(behind, 3), "seconds": took}
