"""An outbox: appends in order, at least once and without a hole, whatever fails on the way.

Numbers make repetition harmless (`inband.Numbers`): a reader takes the next number of a stream and nothing else.
So when an append fails, everything from the first that is not known to be in the log is appended again, in order,
also what was confirmed behind the failed one: it landed ahead of a missing number, and was void.

A position that was put behind some appends is safe, and may be made durable, once all before it are in the log.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.protocol.machine import Append, Effects, Halt, SetTimer, Token

RETRY_SECONDS = 0.005
LIMIT = 100_000
"""Appends that may wait. A machine with more of them ends itself: it starts again from its position."""

P = TypeVar("P")


@dataclass
class _Entry(Generic[P]):
    append: tuple[tuple[str, int], bytes] | None
    position: P | None
    is_confirmed: bool


class Outbox(Generic[P]):
    """Give it `appended`, `failed`, and its machine's timer as `again`; take out `safe` positions."""

    def __init__(self) -> None:
        self._entries: deque[_Entry[P]] = deque()
        self._first = 0
        self._attempt = 0
        self._has_failed = False
        self._safe: P | None = None

    def put(self, appends: Sequence[tuple[tuple[str, int], bytes]], position: P | None) -> Effects:
        """Append these; `position` is where to go on from once they, and all before them, are in the log."""
        for append in appends:
            self._entries.append(_Entry(append, None, False))
            if not self._has_failed:
                yield self._send(len(self._entries) - 1)
        if position is not None:
            self._entries.append(_Entry(None, position, True))
            self._settle()
        if len(self._entries) > LIMIT:
            yield Halt(f"{LIMIT} appends wait for the log")

    def appended(self, token: Token) -> None:
        entry = self._entry(token)
        if entry is not None and not self._has_failed:
            entry.is_confirmed = True
            self._settle()

    def failed(self, token: Token) -> Effects:
        if self._entry(token) is None or self._has_failed:
            return ()
        self._has_failed = True
        return (SetTimer("again", RETRY_SECONDS),)

    def again(self) -> Effects:
        """Append everything anew that is not known to be in the log."""
        self._has_failed = False
        self._attempt += 1
        for index, entry in enumerate(self._entries):
            if entry.append is not None:
                entry.is_confirmed = False
                yield self._send(index)

    def safe(self) -> P | None:
        """The newest position that has become safe since the last call."""
        safe, self._safe = self._safe, None
        return safe

    def _send(self, index: int) -> Append:
        append = self._entries[index].append
        assert append is not None
        (topic, partition), value = append
        return Append(topic, partition, value, token=(self._attempt, self._first + index))

    def _entry(self, token: Token) -> "_Entry[P] | None":
        """The entry of an append of the current attempt; earlier attempts' answers mean nothing any more."""
        match token:
            case (int() as attempt, int() as number) if attempt == self._attempt and number >= self._first:
                return self._entries[number - self._first]
        return None

    def _settle(self) -> None:
        while self._entries and self._entries[0].is_confirmed:
            entry = self._entries.popleft()
            self._first += 1
            if entry.position is not None:
                self._safe = entry.position
