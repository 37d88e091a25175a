"""What a server does only while it leads: prepare requests, keep deadlines, clear away what is over."""

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from lockstep.coordination import transactions
from lockstep.coordination.preparation import EXPIRED, Preparation
from lockstep.coordination.sessions import SessionTracker
from lockstep.coordination.transactions import SessionClosed, SessionOpened, Submission, Transaction
from lockstep.coordination.tree import Tree
from lockstep.coordination.wire.codes import CONTAINER_OWNER, Op, owner_ttl
from lockstep.coordination.wire.jute import pack_string


class Forward(Struct, frozen=True, array_like=True):
    """What a server tells the leader: signs of life, sessions that it took over, and requests."""

    touched: tuple[int, ...]
    attached: tuple[int, ...]
    submissions: tuple[Submission, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Forward)


def encode_forward(forward: Forward) -> bytes:
    return _encoder.encode(forward)


def decode_forward(payload: bytes) -> Forward:
    return _decoder.decode(payload)


class Leadership:
    """One epoch of leading. `proposals` are the transactions that wait to be proposed."""

    def __init__(
        self,
        server: int,
        tree: Tree,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        bucket_ms: int,
        enforce_quota: bool,
    ) -> None:
        """`now_ms` dates transactions; deadlines follow `steady_ms`, which does not jump."""
        self.proposals: list[bytes] = []
        self._server = server
        self._tree = tree
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._preparation = Preparation(tree, enforce_quota=enforce_quota)
        self._tracker = SessionTracker(bucket_ms)
        timeouts = {session: known.timeout for session, known in tree.sessions.items()}
        self._tracker.restart(timeouts, steady_ms())
        self._sweep_ms = 5 * bucket_ms
        self._swept = 0

    def take(self, origin: int, forward: Forward) -> None:
        now, steady = self._now_ms(), self._steady_ms()
        for session in forward.attached:
            self._preparation.attach(session, origin)
        self.touch(forward.touched)
        for submission in forward.submissions:
            if submission.session and submission.body != EXPIRED:
                self._tracker.touch(submission.session, steady)
            transaction = self._preparation.prepare(origin, submission, now)
            if transaction is not None:
                self.proposals.append(transactions.encode(transaction))

    def touch(self, sessions: Iterable[int]) -> None:
        steady = self._steady_ms()
        for session in sessions:
            self._tracker.touch(session, steady)

    def clear_away(self) -> None:
        """End sessions that were silent for too long; delete empty containers and nodes past their time."""
        steady = self._steady_ms()
        silent = self._tracker.expired(steady)
        over = [Submission(0, session, Op.CLOSE_SESSION, EXPIRED) for session in silent]
        if steady - self._swept >= self._sweep_ms:
            self._swept = steady
            now = self._now_ms()
            due = [path for path in self._tree.containers | self._tree.ttls if self._is_unused(path, now)]
            over += [Submission(0, 0, Op.DELETE_CONTAINER, pack_string(path)) for path in sorted(due)]
        if over:
            self.take(self._server, Forward((), (), tuple(over)))

    def applied(self, transaction: Transaction) -> None:
        """A transaction of this epoch is now part of the tree."""
        self._preparation.applied(transaction)
        if isinstance(transaction.operation, SessionOpened):
            self._tracker.add(transaction.session, transaction.operation.timeout, self._steady_ms())
        elif isinstance(transaction.operation, SessionClosed):
            self._tracker.remove(transaction.session)

    def _is_unused(self, path: str, now: int) -> bool:
        node = self._tree.nodes[path]
        if node.children:
            return False
        if node.owner == CONTAINER_OWNER:
            return node.cversion > 0
        return now - node.mtime > owner_ttl(node.owner)
