"""Clients of a simulated service: each has one command in flight and repeats it until it is answered.

A client keeps a command's request number over all repetitions, which is what lets a service answer it
once. Its view (when it asked, when it was answered, with what) is the history that checkers judge.
"""

from typing import TYPE_CHECKING, Any

from lockstep.protocol.machine import ClientId, NodeId
from lockstep.sim.history import Operation

if TYPE_CHECKING:
    from lockstep.sim.scenario import Scenario
    from lockstep.sim.world import World


class Clients:
    """All clients of one run."""

    def __init__(self, world: "World", scenario: "Scenario") -> None:
        self._world = world
        self._scenario = scenario
        self._open: dict[ClientId, Operation] = {}
        self._tries: dict[ClientId, int] = {}
        self._at: dict[ClientId, NodeId] = {}
        self._done: dict[ClientId, bool] = {}

    def begin(self) -> None:
        world = self._world
        world.on_reply = self._replied
        for number in range(1, self._scenario.client_count + 1):
            client = f"c{number}"
            self._tries[client] = 0
            self._done[client] = False
            self._at[client] = world.rng.choice(self._scenario.nodes)
            world.after(world.rng.randint(0, 200_000), self._next, client, 1)

    def finished(self) -> bool:
        """Whether every client got all its answers."""
        return all(self._done.values())

    def _next(self, client: ClientId, request: int) -> None:
        command = self._scenario.command(client, request, self._world.rng)
        if command is None:
            self._done[client] = True
            return
        operation = Operation(client, request, command, self._world.now)
        self._open[client] = operation
        self._world.history.operations.append(operation)
        self._ask(operation)

    def _ask(self, operation: Operation) -> None:
        world, client = self._world, operation.client
        self._tries[client] += 1
        node = self._at[client]
        if not world.network.lost():
            world.after(
                world.network.delay(), world.command, node, client, operation.request, operation.command
            )
            if world.network.doubled():
                world.after(
                    world.network.delay(), world.command, node, client, operation.request, operation.command
                )
        timeout = self._scenario.client_timeout + world.rng.randint(0, self._scenario.client_timeout)
        world.after(timeout, self._timed_out, operation, self._tries[client])

    def _timed_out(self, operation: Operation, tries: int) -> None:
        client = operation.client
        if self._open.get(client) is operation and self._tries[client] == tries:
            self._at[client] = self._world.rng.choice(self._scenario.nodes)
            self._ask(operation)

    def _replied(self, client: ClientId, request: int, result: Any) -> None:
        if not self._world.network.lost():
            self._world.after(self._world.network.delay(), self._answer, client, request, result)

    def _answer(self, client: ClientId, request: int, result: Any) -> None:
        operation = self._open.get(client)
        if operation is None or operation.request != request:
            return  # an answer to a repetition that came too late
        world, scenario = self._world, self._scenario
        elsewhere = scenario.redirect(result)
        if elsewhere is not None:
            self._at[client] = elsewhere if elsewhere in world.nodes else world.rng.choice(scenario.nodes)
            self._tries[client] += 1
            world.after(world.rng.randint(1_000, 20_000), self._ask_again, operation, self._tries[client])
            return
        operation.returned, operation.result = world.now, result
        del self._open[client]
        world.after(1 + int(world.rng.expovariate(1 / scenario.think_time)), self._next, client, request + 1)

    def _ask_again(self, operation: Operation, tries: int) -> None:
        if self._open.get(operation.client) is operation and self._tries[operation.client] == tries:
            self._ask(operation)
