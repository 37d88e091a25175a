"""A small replicated log with a key-value store on top: the protocol that the simulator proves itself on.

It is small enough to read in one go and real enough to have every classic mistake in it: `bugs.Bug` plants
them one at a time. `node.LogNode` is the machine, `messages` what it says, `scenario` how it is simulated.
"""
