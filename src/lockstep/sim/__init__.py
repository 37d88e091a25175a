"""The simulator: runs protocol machines in virtual time, with faults that one seed decides.

`scenario.Scenario` is how a protocol plugs in, `scenario.SCENARIOS` where `lockstep sim` finds it,
`runner.run_seed` runs one seed, `world.World` is the host that carries out a machine's effects, and
`checkers` judge what came out. Read docs/simulator.md for the tour.
"""
