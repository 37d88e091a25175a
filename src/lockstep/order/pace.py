"""How often an order-making machine looks at its inputs: often while they move, seldom while they rest.

While inputs move there is one look a period; after `CALM` seconds in which nothing moved the pause doubles with
every look, up to `idle`. The host watches resting inputs in another way and tells the machine when one grows
(`inputs.EndOffsets`); should that fail, the first input after a silence waits for the next look, `idle` at most.
Time is counted in the pauses themselves: a machine has no clock.
"""

IDLE = 0.25
CALM = 2.0


class Pace:
    """The pause before the next look, in seconds."""

    def __init__(self, period: float, *, idle: float = IDLE, calm: float = CALM) -> None:
        self._period = period
        self._idle = max(idle, period)
        self._calm = calm
        self._quiet = 0.0
        self._pause = period

    @property
    def pause(self) -> float:
        return self._pause

    def rested(self) -> None:
        """A pause went by."""
        self._quiet += self._pause
        if self._quiet > self._calm:
            self._pause = min(self._idle, 2 * self._pause)

    def moved(self) -> bool:
        """Something happened: look often again. True if the pauses had grown longer."""
        slow = self._pause > self._period
        self._quiet = 0.0
        self._pause = self._period
        return slow
