"""The inputs of a shard, as the processes that make its order see them: which they are, and where they end.

A shard is written `topic:partition@start,topic:partition@start`: its queues in the order of their numbers, each
with the offset at which the run began (0 if it is left out). Every process of a run must be given the same.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Log
from lockstep.observe.logger import get_logger
from lockstep.order.liverobin import AskEnds, Ends
from lockstep.protocol.host import Host
from lockstep.protocol.machine import Machine

logger = get_logger(__name__)

Queue = tuple[str, int]
MAX_QUEUES = 1000
_ANSWER_SECONDS = 0.25
"""After this time a partition counts as one that cannot be asked."""
_APART_SECONDS = 0.002
"""How long those that answer wait for those that may not."""


@dataclass(frozen=True)
class Shard:
    """The inputs that one shard merges, in the order of their queue numbers, and where the run began."""

    queues: tuple[Queue, ...]
    starts: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`topic:partition@start,...`; `@start` may be left out."""
        queues: list[Queue] = []
        starts: list[int] = []
        for part in text.split(","):
            place, at, start = part.partition("@")
            topic, _, partition = place.rpartition(":")
            if not topic or not _is_number(partition) or (at and not _is_number(start)):
                raise UsageError(
                    f"{part!r} names no input", hint="write topic:partition or topic:partition@start"
                )
            queues.append((topic, int(partition)))
            starts.append(int(start) if at else 0)
        if len(set(queues)) < len(queues):
            raise UsageError(
                f"{text!r} names an input twice", hint="name each topic:partition once in a shard"
            )
        if len(queues) > MAX_QUEUES:
            raise UsageError(
                f"a shard of {len(queues)} inputs", hint=f"at most {MAX_QUEUES}: make more shards"
            )
        return cls(tuple(queues), tuple(starts))

    def __str__(self) -> str:
        return ",".join(
            f"{topic}:{partition}@{start}"
            for (topic, partition), start in zip(self.queues, self.starts, strict=True)
        )


class EndOffsets:
    """Asks where the inputs of all shards of a process end: one question for all who want to know at once.

    Kafka's client answers such a question when the last broker has, so one that is dead would hold up the others'
    answers. Once a partition has not answered, each is asked on its own, until all of them answer again.
    """

    def __init__(self, log: Log, shards: Sequence[Shard], *, fresh: float = 0.001) -> None:
        """An answer that is not older than `fresh` seconds is not asked for again."""
        self._log = log
        self._places = sorted({queue for shard in shards for queue in shard.queues})
        self._fresh = fresh
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._apart: dict[Queue, asyncio.Task[None]] = {}
        self._silent: set[Queue] = set()
        self._known: dict[Queue, int] = {}

    async def of(self, shard: Shard) -> Ends:
        if self._silent:
            await self._ask_apart()
        else:
            now = asyncio.get_running_loop().time()
            if self._asking is None or (self._asking.done() and now - self._asked_at > self._fresh):
                self._asked_at = now
                self._asking = asyncio.ensure_future(self._ask(self._places))
            await asyncio.shield(self._asking)
        return Ends(tuple(self._known.get(queue) for queue in shard.queues))

    async def _ask(self, places: Sequence[Queue]) -> None:
        try:
            found = await self._log.ends(places, seconds=_ANSWER_SECONDS)
        except LockstepError as error:
            logger.debug("cannot ask where the inputs end, the last cut stands: %s", error)
            found = {}
        self._known.update(found)
        for place in places:
            (self._silent.discard if place in found else self._silent.add)(place)

    async def _ask_one(self, place: Queue) -> None:
        try:
            await self._ask([place])
        finally:
            del self._apart[place]

    async def _ask_apart(self) -> None:
        for place in self._places:
            if place not in self._apart:
                self._apart[place] = asyncio.ensure_future(self._ask_one(place))
        await asyncio.wait(list(self._apart.values()), timeout=_APART_SECONDS)


class ShardHost:
    """Runs the order-making machine of one shard: answers its questions, hands on what else it delivers."""

    def __init__(
        self,
        machine: Machine,
        *,
        node: str,
        log: Log,
        shard: Shard,
        ends: EndOffsets,
        deliver: Callable[[Any], None] | None = None,
    ) -> None:
        self._shard = shard
        self._ends = ends
        self._deliver = deliver
        self._asking: asyncio.Task[None] | None = None
        self.host = Host(machine, node=node, log=log, deliver=self._delivered)

    def tell(self, command: Any) -> None:
        """Give the machine a command; nobody waits for its answer."""
        self.host.submit(command).add_done_callback(lambda told: told.cancelled() or told.exception())

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self.host.stop()

    def _delivered(self, item: Any) -> None:
        if not isinstance(item, AskEnds):
            if self._deliver is not None:
                self._deliver(item)
        elif self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        self.tell(await self._ends.of(self._shard))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
