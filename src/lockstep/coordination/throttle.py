"""Reading less from clients that ask for more than the server can take, and going on when there is room again."""

from lockstep.coordination.clients import Client, Limits
from lockstep.coordination.pending import PendingWrites


class Throttle:
    def __init__(self, limits: Limits, pending: PendingWrites) -> None:
        self._limits = limits
        self._pending = pending
        self._paused: dict[Client, None] = {}
        self._is_pressed = False

    def press(self, pressed: bool) -> None:
        """The disk does not keep up: take less from clients. (Never from other servers: their heartbeats come
        the same way, and silence means an election.)"""
        self._is_pressed = pressed
        if not pressed:
            self.relax()

    def asked(self, client: Client) -> None:
        """The client has asked for something that must wait."""
        crowded = len(client.queue) > self._limits.outstanding_per_connection
        if (crowded or self._is_full(1) or self._is_pressed) and not client.is_paused:
            client.is_paused = True
            self._paused[client] = None
            client.port.pause()

    def relax(self) -> None:
        """Read again from clients that were paused, as far as there is room for what they send."""
        if self._paused and not self._is_pressed and not self._is_full(2):
            for client in list(self._paused):
                if len(client.queue) * 2 < self._limits.outstanding_per_connection:
                    client.is_paused = False
                    del self._paused[client]
                    client.port.resume()

    def forget(self, client: Client) -> None:
        self._paused.pop(client, None)

    def _is_full(self, times: int) -> bool:
        limits = self._limits
        return (
            len(self._pending) * times > limits.outstanding
            or self._pending.bytes * times > limits.outstanding_bytes
        )
