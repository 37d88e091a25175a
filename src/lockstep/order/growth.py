"""Partitions that are added to an input while a run goes on: found by looking, told to whom they concern.

A shard whose topics may grow (`Shard.growing`) takes them in: its generator hears of them (`liverobin.Grown`) and
has them admitted by a cut. Of all other topics it is only said (`grown`) that nobody reads the new partitions.

To name queues, a generator must know which ones were added before it, so it is told a place in the order topic
where that list is known: the topic's beginning, where the list is empty, or, once partitions were added and the
topic was trimmed, the place in the file of `--trimmed`, which is written before anything is deleted.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lockstep.errors import LockstepError
from lockstep.log.interface import Log
from lockstep.observe.logger import get_logger
from lockstep.order.inputs import Shard
from lockstep.order.liverobin import Admitted, AskGrown, Grown
from lockstep.order.records import Queue
from lockstep.order.report import say

logger = get_logger(__name__)

LOOK_SECONDS = 10.0
"""Between two looks for partitions that no shard reads."""
GROWING_SECONDS = 2.0
"""The same, where a shard would take them in."""
GROWN_HINT = (
    "this run does not read them, because keys have moved between partitions: let it finish what it reads, "
    "stop it, and begin a new run, which reads all partitions from where they stand"
)


class Trimmed(msgspec.Struct, frozen=True):
    """The order topic of a shard may begin at `order_offset`; what was added before it."""

    order_offset: int
    added: tuple[Queue, ...]


def read_trimmed(path: Path) -> dict[int, Trimmed]:
    """By shard; shards whose order topic was trimmed before anything was added to them are not there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[int, Trimmed])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise LockstepError(f"{path} does not say which partitions were added: {error}") from error


class Growth:
    """Looks for new partitions. `tell` hands a command to the machine of a shard whose topics may grow."""

    def __init__(
        self,
        name: str,
        log: Log,
        order_topic: str,
        shards: Sequence[Shard],
        *,
        tell: Callable[[int, Grown], None] = lambda number, grown: None,
        trimmed: Path | None = None,
    ) -> None:
        self._name = name
        self._log = log
        self._order_topic = order_topic
        self._shards = shards
        self._tell = tell
        self._trimmed = trimmed
        self._told: dict[int, tuple[Queue, ...]] = {}
        self._said: dict[str, list[int]] = {}
        self._asked: set[int] = set()
        self._hurry = asyncio.Event()

    def delivered(self, number: int, item: Any) -> None:
        """What the machine of a shard has to say about it."""
        match item:
            case AskGrown():
                self._asked.add(number)
                self._hurry.set()
            case Admitted(queues=queues):
                say("admitted", name=self._name, shard=number, queues=queues)

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        pause = GROWING_SECONDS if any(shard.growing for shard in self._shards) else LOOK_SECONDS
        while True:
            self._hurry.clear()
            try:
                await self._look()
            except LockstepError as error:
                logger.debug("cannot tell of new partitions: %s", error)
            try:
                await asyncio.wait_for(self._hurry.wait(), pause)
            except TimeoutError:
                continue

    async def _look(self) -> None:
        counts = {}
        for topic in sorted({topic for shard in self._shards for topic, _ in shard.queues}):
            try:
                counts[topic] = await self._log.partitions(topic)
            except LockstepError as error:
                logger.debug("cannot ask for the partitions of %s: %s", topic, error)
                continue
            fixed = [shard for shard in self._shards if topic not in _growing(shard)]
            if any(topic == name for shard in fixed for name, _ in shard.queues):
                self._say_unread(topic, unread_partitions(topic, counts[topic], fixed))
        for number, shard in enumerate(self._shards):
            found = tuple(
                (topic, partition)
                for topic in sorted(_growing(shard))
                for partition in range(counts.get(topic, 0))
                if (topic, partition) not in shard.growing
            )
            if found != self._told.get(number, ()) or number in self._asked:
                self._tell(number, await self._grown(number, found))
                self._told[number] = found
                self._asked.discard(number)

    def _say_unread(self, topic: str, unread: list[int]) -> None:
        """Say it once: their records reach nobody."""
        if unread and self._said.get(topic) != unread:
            self._said[topic] = unread
            say("grown", name=self._name, topic=topic, unread=unread, hint=GROWN_HINT)

    async def _grown(self, number: int, found: tuple[Queue, ...]) -> Grown:
        # In this order: if nothing is noted after we have seen where the topic begins, nothing was added before.
        first = (await self._log.first_offsets(self._order_topic))[number]
        noted = read_trimmed(self._trimmed).get(number) if self._trimmed is not None else None
        if noted is None:
            return Grown(found, first)
        return Grown(found, noted.order_offset, noted.added)


def unread_partitions(topic: str, count: int, shards: Sequence[Shard]) -> list[int]:
    """The partitions of a topic that no shard reads."""
    read = {partition for shard in shards for name, partition in shard.queues if name == topic}
    return [partition for partition in range(count) if partition not in read]


def _growing(shard: Shard) -> set[str]:
    return {topic for topic, _ in shard.growing}
