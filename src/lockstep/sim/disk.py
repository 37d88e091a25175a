"""A node's disk: what was written, what is safe, and what a crash leaves.

Writes are grouped: one flush at a time takes everything that is waiting, as the real host's group commit
does. A crash keeps all that was confirmed; of the rest, a random part of the front survives (the torn
tail of an append-only file is cut at the first bad checksum, so survivors are always a prefix).
"""

from random import Random

from lockstep.protocol.machine import Compact, Message, Persist, Token


class Disk:
    """The durable history of one node. It outlives the node's incarnations."""

    __slots__ = ("flushing", "latency", "safe", "waiting")

    def __init__(self, latency: int) -> None:
        self.latency = latency
        self.safe: list[Message] = []
        self.flushing: list[Persist | Compact] = []
        self.waiting: list[Persist | Compact] = []

    def write(self, effect: Persist | Compact) -> bool:
        """Queue a write; true if the disk was idle, so that the host must start a flush."""
        self.waiting.append(effect)
        return not self.flushing

    def begin_flush(self) -> None:
        assert not self.flushing, "one flush at a time"
        self.flushing, self.waiting = self.waiting, []

    def end_flush(self) -> list[Token]:
        """The bytes are safe now: the tokens to confirm, in order."""
        for effect in self.flushing:
            self._apply(effect)
        tokens = [effect.token for effect in self.flushing]
        self.flushing = []
        return tokens

    def crash(self, rng: Random, *, lose: bool = False) -> tuple[int, int]:
        """Power off. Returns how many unconfirmed writes survived, and of how many."""
        unsafe = self.flushing + self.waiting
        self.flushing, self.waiting = [], []
        survivors = rng.randint(0, len(unsafe))
        for effect in unsafe[:survivors]:
            self._apply(effect)
        if lose:
            self.safe = []
        return survivors, len(unsafe)

    def _apply(self, effect: Persist | Compact) -> None:
        if type(effect) is Persist:
            self.safe.append(effect.record)
        elif type(effect) is Compact:
            self.safe = list(effect.records)
