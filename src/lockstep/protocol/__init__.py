"""Protocols as pure state machines: the contract, the effects, and the real host that runs them."""
