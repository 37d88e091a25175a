"""What every host of a machine does alike: one input at a time, timers, and an end that leaves no doubt.

A runner gives its machine one input at a time and starts the effects of each before the next, as
`lockstep.protocol.machine` promises. It is crash-only: an error inside the machine, `Halt`, or a disk that does
not keep records ends it at once, without goodbye and without flushing anything; whoever supervises it
starts it again from what is durable.

`Host` runs any machine; the coordination service has a runner of its own, with two channels to each peer.
"""

import asyncio
import gc
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger
from lockstep.protocol.commit import GroupCommit
from lockstep.protocol.machine import Effects

logger = get_logger(__name__)

RunnerT = TypeVar("RunnerT", bound="Runner")


class Runner(ABC):
    """The loop around one machine. `name` is for people: "node a", "server 1"."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, name: str, on_timer: Callable[[str], Effects]) -> None:
        self._name = name
        self._machine_on_timer = on_timer
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._commit: GroupCommit | None = None
        self._running = False
        self._stopped = False

    @abstractmethod
    async def start(self) -> None:
        """Recover, open, and begin to run. An implementation calls `_prepare` first."""

    @abstractmethod
    def _perform(self, effects: Effects) -> None:
        """Start these effects, in order."""

    @abstractmethod
    def _doubt(self, error: BaseException) -> LockstepError:
        """The error with which the runner ends because of another one."""

    @abstractmethod
    def _release(self, error: Exception | None) -> None:
        """Close what is open: the runner ends, by itself if there is an error."""

    async def ended(self) -> None:
        """Wait until the runner ends: returns after `stop`, raises if it ended itself."""
        await asyncio.shield(self._ended)

    def end(self) -> None:
        """End without waiting; `stop` may follow."""
        self._end(None)

    async def stop(self) -> None:
        """End; the durable folder is free on return."""
        self._end(None)
        if self._commit is not None:
            await self._commit.close()

    def _prepare(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def _input(self, handler: Callable[..., Effects], *arguments: Any) -> None:
        """One input: the machine's effects are started before this returns."""
        if not self._running:
            return
        try:
            self._perform(handler(*arguments))
        except Exception as error:
            logger.exception("%s: the machine failed", self._name)
            self._fail(error)

    def _set_timer(self, name: str, after: float) -> None:
        if (old := self._timers.get(name)) is not None:
            old.cancel()
        self._timers[name] = self._loop.call_later(after, self._on_timer, name, time.monotonic() + after)

    def _cancel_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _on_timer(self, name: str, due: float) -> None:
        early = due - time.monotonic()
        if early > 0:  # uvloop rounds to milliseconds; a lease must never be over before its time
            self._timers[name] = self._loop.call_later(max(early, 0.001), self._on_timer, name, due)
            return
        del self._timers[name]
        self._input(self._machine_on_timer, name)

    def _fail(self, error: BaseException) -> None:
        """This runner can no longer be trusted: end it now."""
        if self._running:
            doubt = self._doubt(error)
            logger.error("%s", doubt)
            self._end(doubt)

    def _end(self, error: Exception | None) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._running = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._release(error)
        if error is not None:
            if self._commit is not None:
                self._commit.abandon()
            self._ended.set_exception(error)
        elif not self._ended.done():
            self._ended.set_result(None)


def serve(build: Callable[[], RunnerT], *, ready: Callable[[RunnerT], None] | None = None) -> None:
    """Run one runner as this whole process until SIGTERM or SIGINT.

    One that ends itself raises its error: the process must exit with that code, so that whoever supervises
    it starts it again.
    """
    import uvloop

    async def run() -> None:
        runner = build()
        await runner.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.end)
        gc.freeze()  # what start-up built is never garbage: keep it out of every collection
        if ready is not None:
            ready(runner)
        try:
            await runner.ended()
        finally:
            await runner.stop()

    uvloop.run(run())
