"""The shared log as a machine sees it: appends are answered, subscriptions never leave a gap.

Appends are handed to the log in the order of the effects. One that the log refuses or loses track of becomes
`on_append_failed`. A subscription that cannot go on (its offset fell out of retention, its topic is gone)
ends the node: a machine must never go on over a hole.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Entry, Log
from lockstep.protocol.machine import Append, LogRecord, Token


class Feed:
    """Carries out `Append` and `Subscribe` on a log."""

    def __init__(
        self,
        log: Log | None,
        record: Callable[[LogRecord], None],
        appended: Callable[[Token, int], None],
        append_failed: Callable[[Token, str], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._record = record
        self._appended = appended
        self._append_failed = append_failed
        self._fail = fail
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribed: dict[tuple[str, int], asyncio.Task[None]] = {}

    def append(self, effect: Append) -> None:
        self._start(self._append(self._given(), effect))

    def subscribe(self, topic: str, partition: int, offset: int) -> None:
        """Subscribing again moves the subscription to the new offset."""
        if (old := self._subscribed.get((topic, partition))) is not None:
            old.cancel()
        self._subscribed[topic, partition] = self._start(
            self._follow(self._given(), topic, partition, offset)
        )

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _given(self) -> Log:
        if self._log is None:
            raise UsageError("the machine uses the shared log, and its host was given none")
        return self._log

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _append(self, log: Log, effect: Append) -> None:
        try:
            entry = Entry(effect.value, effect.key, effect.headers)
            (offset,) = await log.append_batch(effect.topic, effect.partition, (entry,))
        except LockstepError as error:
            self._append_failed(effect.token, str(error))
        except Exception as error:
            self._fail(error)
        else:
            self._appended(effect.token, offset)

    async def _follow(self, log: Log, topic: str, partition: int, offset: int) -> None:
        try:
            async with log.reader() as reader:
                await reader.subscribe(topic, partition, offset)
                while True:
                    for record in await reader.next():
                        self._record(record)
                        if self._subscribed[topic, partition] is not asyncio.current_task():
                            return  # the machine has just moved its subscription
        except Exception as error:
            self._fail(error)
