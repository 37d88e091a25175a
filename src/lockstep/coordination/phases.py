"""How long this server's elections and recoveries took (the paper's phases 1 and 2), for `mntr` and metrics."""

import time

from lockstep.coordination.zab.interface import Decided, Delivery, Following, Leading, Looking


class Phases:
    """Counts from the first `Looking` until a decision, and from there until service; milliseconds."""

    def __init__(self) -> None:
        self.elections = 0
        """How many are over: a leader was found and served."""
        self.last_election_ms = self.last_recovery_ms = 0.0
        self.longest_election_ms = self.longest_recovery_ms = 0.0
        self._looking = self._decided = 0.0

    def on_delivery(self, item: Delivery) -> None:
        match item:
            case Looking():
                # A failed attempt belongs to the election that it was part of.
                self._looking = self._looking or time.monotonic()
                self._decided = 0.0
            case Decided():
                self._decided = time.monotonic()
            case Following() | Leading() if self._looking and self._decided:
                self.elections += 1
                self.last_election_ms = round((self._decided - self._looking) * 1000, 3)
                self.last_recovery_ms = round((time.monotonic() - self._decided) * 1000, 3)
                self.longest_election_ms = max(self.longest_election_ms, self.last_election_ms)
                self.longest_recovery_ms = max(self.longest_recovery_ms, self.last_recovery_ms)
                self._looking = self._decided = 0.0
            case _:
                pass
