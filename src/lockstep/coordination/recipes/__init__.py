"""Recipes over our client: leader election, membership, lock, barrier.

Whoever holds something here gets a **fencing token**: a number that is larger for every later holder, over all
servers and restarts (the zxid of the node that made it the holder). Send it with every action on something
outside, and let that side refuse numbers below the largest it has seen: a holder that was paused, and does not
know that it has lost its place, then does no harm.
"""

from lockstep.coordination.recipes.barrier import Barrier, DoubleBarrier
from lockstep.coordination.recipes.election import Election
from lockstep.coordination.recipes.lock import Lock, LockLost
from lockstep.coordination.recipes.membership import Membership

__all__ = ["Barrier", "DoubleBarrier", "Election", "Lock", "LockLost", "Membership"]
