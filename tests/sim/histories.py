"""Short ways to write a history by hand."""

from typing import Any

from lockstep.sim.history import Delivered, Operation, Sequence
from lockstep.sim.replog.messages import Answer, CompareAndSet, Get, Put


def delivered(node: str, *items: Any, incarnation: int = 1) -> Sequence:
    """A node that delivered these items, one a microsecond."""
    return Sequence(node, incarnation, [Delivered(at, item) for at, item in enumerate(items, start=1)])


def put(client: str, span: tuple[int, int | None], value: str, key: str = "x") -> Operation:
    """A write that was asked and answered at these times (None: never answered)."""
    invoked, returned = span
    return Operation(client, 1, Put(key, value), invoked, returned, Answer() if returned else None)


def get(client: str, span: tuple[int, int], value: str | None, key: str = "x") -> Operation:
    """A read that found `value`."""
    return Operation(client, 1, Get(key), span[0], span[1], Answer(value))


def swap(client: str, span: tuple[int, int], expected: str | None, value: str, *, done: bool) -> Operation:
    command = CompareAndSet("x", expected, value)
    return Operation(client, 1, command, span[0], span[1], Answer(done=done))
