"""The writes that a server owes an answer for, from the request until the transaction that it caused.

Each has a number that its transaction repeats. A server that follows a new leader has been given all of that
leader's history, so that what is still here then is in nobody's, and may safely be sent again.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from lockstep.coordination import transactions
from lockstep.coordination.clients import Client
from lockstep.coordination.transactions import Submission, Transaction
from lockstep.coordination.wire.codes import Op
from lockstep.coordination.wire.records import Connect

RUN_BYTES = 4 << 20
_Item = TypeVar("_Item")


class Pending(Struct):
    """One write. `connect`: it answers a client's greeting, not a request."""

    submission: Submission
    client: Client | None
    xid: int
    connect: Connect | None = None
    since: float = 0.0


class PendingWrites:
    """Of server `server`, in its life `incarnation`. `unsent` is what the leader has not been given yet."""

    def __init__(self, server: int, incarnation: int) -> None:
        self.unsent: list[Submission] = []
        self.by_number: dict[int, Pending] = {}
        self.bytes = 0
        self.last_number = transactions.first_sequence(incarnation)
        self._server = server

    def __len__(self) -> int:
        return len(self.by_number)

    def add(
        self,
        session: int,
        op: int,
        body: bytes,
        *,
        client: Client | None = None,
        xid: int = 0,
        connect: Connect | None = None,
    ) -> int:
        """A new write; its number."""
        self.last_number += 1
        identities = client.identities if client else ()
        submission = Submission(self.last_number, session, op, body, identities)
        self.by_number[self.last_number] = Pending(submission, client, xid, connect, time.monotonic())
        self.bytes += len(body)
        self.unsent.append(submission)
        return self.last_number

    def answered(self, transaction: Transaction) -> Pending | None:
        """The write that caused this transaction, if it is one of ours; it waits no more."""
        if transaction.origin != self._server or not transaction.sequence:
            return None
        return self._remove(transaction.sequence)

    def send_again(self, done: int) -> None:
        """There is a new leader, whose history holds our writes up to number `done`."""
        for number, pending in list(self.by_number.items()):
            is_gone = pending.client is not None and pending.client.is_closed
            is_useless = is_gone and pending.submission.op != Op.CLOSE_SESSION
            if transactions.is_repeat(number, done) or is_useless:
                self._remove(number)
        self.unsent = [pending.submission for pending in self.by_number.values()]

    def take_unsent(self) -> list[list[Submission]]:
        """What is to be sent, in runs that fit one message each."""
        unsent, self.unsent = self.unsent, []
        return in_runs(unsent, lambda submission: len(submission.body))

    def _remove(self, number: int) -> Pending | None:
        pending = self.by_number.pop(number, None)
        if pending is not None:
            self.bytes -= len(pending.submission.body)
        return pending


def in_runs(items: list[_Item], size: Callable[[_Item], int]) -> list[list[_Item]]:
    """Cut the items into runs of about `RUN_BYTES`: no message or record grows with what clients send."""
    runs: list[list[_Item]] = []
    room = 0
    for item in items:
        if room <= 0:
            runs.append([])
            room = RUN_BYTES
        runs[-1].append(item)
        room -= size(item)
    return runs
