"""Group commit: many `Persist` effects share one fsync, which runs in a thread while the loop goes on.

At most one write is under way. All that was asked for meanwhile goes into the next one, so the number of
fsyncs follows the disk and the number of records does not matter. Confirmations come in the order of asking
because there is one queue, and a `Compact` takes its place in it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lockstep.errors import LockstepError
from lockstep.protocol.machine import Token
from lockstep.protocol.storage import MAX_BATCH, History

MAX_WAITING: Final = 64 * 2**20
"""Bytes that may wait for the disk before the host stops reading from the network."""


class GroupCommit:
    """Feeds one `History` from an event loop."""

    def __init__(
        self,
        history: History,
        *,
        confirm: Callable[[Sequence[Token]], None],
        fail: Callable[[LockstepError], None],
        pressure: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`confirm` gets the tokens that are durable now; after `fail` nothing is ever confirmed.

        `pressure(True)` asks for fewer records (too many bytes wait), `pressure(False)` takes it back.
        """
        self._history = history
        self._confirm = confirm
        self._fail = fail
        self._pressure = pressure
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lockstep-commit")
        self._waiting: deque[tuple[Token, bytes | tuple[bytes, ...]]] = deque()
        self._bytes = 0
        self._pressed = False
        self._scheduled = False
        self._closed = False
        self.commits = 0

    def persist(self, record: bytes, token: Token) -> None:
        self._enqueue(token, record, len(record))

    def compact(self, records: tuple[bytes, ...], token: Token) -> None:
        self._enqueue(token, records, sum(map(len, records)))

    def abandon(self) -> None:
        """Stop at once: what waits is dropped, nothing more is confirmed (as in a crash)."""
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._thread.submit(self._history.close)
        self._thread.shutdown(wait=False)

    async def close(self) -> None:
        """Stop, and return once the file is released."""
        self.abandon()
        await self._loop.run_in_executor(None, self._thread.shutdown)

    def _enqueue(self, token: Token, what: bytes | tuple[bytes, ...], size: int) -> None:
        if self._closed:
            return
        self._waiting.append((token, what))
        self._bytes += size
        if self._bytes > MAX_WAITING and not self._pressed:
            self._pressed = True
            self._pressure(True)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._commit)  # not at once: the rest of this tick joins in

    def _commit(self) -> None:
        if self._closed:
            return
        tokens, size, write = self._next_write()
        self._bytes -= size
        if self._pressed and self._bytes < MAX_WAITING // 2:
            self._pressed = False
            self._pressure(False)
        self.commits += 1
        self._loop.run_in_executor(self._thread, write).add_done_callback(
            lambda future: self._committed(future, tokens)
        )

    def _next_write(self) -> tuple[list[Token], int, Callable[[], None]]:
        """Either one compaction, or as many records as stand before the next one and fit a batch."""
        token, what = self._waiting[0]
        if isinstance(what, tuple):
            self._waiting.popleft()
            records = what
            return [token], sum(map(len, records)), lambda: self._history.replace(records)
        tokens: list[Token] = []
        batch: list[bytes] = []
        size = 0
        while self._waiting and size < MAX_BATCH:
            token, what = self._waiting[0]
            if isinstance(what, tuple):
                break
            self._waiting.popleft()
            tokens.append(token)
            batch.append(what)
            size += len(what)
        return tokens, size, lambda: self._history.append(batch)

    def _committed(self, future: "asyncio.Future[None]", tokens: list[Token]) -> None:
        if self._closed or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.abandon()
            self._fail(error if isinstance(error, LockstepError) else LockstepError(str(error)))
            return
        if self._waiting:
            self._commit()
        else:
            self._scheduled = False
        self._confirm(tokens)
