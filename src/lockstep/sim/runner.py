"""Runs one seed: draws its faults, lets the world go on until the end, has the history judged.

A seed's run is the same with and without a trace: sweeps run without one, and a seed that broke a
promise is run again with one.
"""

from random import Random

from msgspec import Struct

from lockstep.sim.faults import MILLISECOND, SECOND, FaultMix, draw
from lockstep.sim.history import History, Violation
from lockstep.sim.nemesis import Nemesis
from lockstep.sim.scenario import Scenario
from lockstep.sim.trace import Trace
from lockstep.sim.world import World


class Outcome(Struct):
    """What one seed came to."""

    seed: int
    events: int
    ended: int
    """Virtual time at the end."""
    violations: list[Violation]
    faults: FaultMix
    history: History
    trace: Trace | None = None


def run_seed(
    kind: type[Scenario],
    seed: int,
    *,
    bug: str | None = None,
    trace: bool = False,
    faults: FaultMix | None = None,
) -> Outcome:
    """Run one seed of a scenario; `faults` overrides what the seed would draw."""
    rng = Random(seed)
    scenario = kind(rng, bug)
    drawn = draw(rng, scenario.permits)
    mix = faults if faults is not None else drawn
    kept = Trace() if trace else None
    world = World(rng, mix, scenario.nodes, scenario.machine, trace=kept)
    Nemesis(world, mix, scenario.permits, scenario.calm_at).begin()
    scenario.begin(world)

    def look() -> None:
        if scenario.settled(world.history):
            world.stop()
        else:
            world.after(50 * MILLISECOND, look)

    world.at(scenario.calm_at + 100 * MILLISECOND, look)
    world.run(scenario.duration, max_events=scenario.max_events)
    violations = [*world.history.violations, *scenario.check(world.history)]
    return Outcome(seed, world.inputs, world.now, violations, mix, world.history, kept)


def report(outcome: Outcome, protocol: str, *, bug: str | None = None, last: int | None = 60) -> str:
    """A seed's story for a person: what was broken, under which faults, and what led to it."""
    head = [
        f"protocol {protocol}, seed {outcome.seed}" + (f", planted bug {bug}" if bug else ""),
        f"faults   {outcome.faults.names()}",
        f"run      {outcome.events} events in {outcome.ended / SECOND:.3f} s of virtual time",
    ]
    until = None
    for violation in outcome.violations[:10]:
        when = "" if violation.at is None else f" at {violation.at / SECOND:.6f}"
        head.append(f"BROKEN   {violation.promise}{when}: {violation.detail}")
    if outcome.violations:
        until = min((v.at for v in outcome.violations if v.at is not None), default=None)
    else:
        head.append("verdict  every promise was kept")
    if outcome.trace is None:
        return "\n".join(head) + "\n"
    return "\n".join([*head, "", *outcome.trace.lines(until=until, last=last)]) + "\n"
