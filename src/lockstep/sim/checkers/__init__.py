"""Checkers: judges that stand outside the system and know only the promises.

Each takes what came out of a run (never a machine's state) and yields a `Violation` for every promise
that was broken. They judge simulated and real runs alike.

- `order`: same order, prefix agreement, no gap, exactly once
- `acyclic`: one order across groups, for atomic multicast
- `linearizable`: a client history that a single copy could have produced
- `progress`: everything is answered and delivered once faults stop
"""
