"""The inputs of a shard, as the processes that make its order see them: which they are, and where they end.

A shard is written `topic:partition@start,topic:partition@start`: its queues in the order of their numbers, each
with the offset at which the run began (0 if it is left out). A `+` behind it says that the topic may grow: what is
added to it belongs to this shard. Every process of a run must be given the same.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Log, Reader
from lockstep.observe.logger import get_logger
from lockstep.order.liverobin import Admitted, AskEnds, Ends
from lockstep.order.pace import CALM
from lockstep.order.records import MAX_QUEUES, Queue
from lockstep.protocol.host import Host
from lockstep.protocol.machine import LogRecord, Machine

logger = get_logger(__name__)

_ANSWER_SECONDS = 0.25
"""After this time a partition counts as one that cannot be asked."""
_SHRUNK_LOOKS = 100
"""Answers in a row that lie behind what is known before that is told; one or two may have been overtaken."""
_APART_SECONDS = 0.002
"""How long those that answer wait for those that may not."""


@dataclass(frozen=True)
class Shard:
    """The inputs that one shard merges, in the order of their queue numbers, and where the run began."""

    queues: tuple[Queue, ...]
    starts: tuple[int, ...]
    growing: frozenset[Queue] = frozenset()
    """Those whose topics may grow."""

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`topic:partition@start+,...`; `@start` and `+` may be left out."""
        queues: list[Queue] = []
        starts: list[int] = []
        growing: set[str] = set()
        for part in text.split(","):
            place, at, start = part.removesuffix("+").partition("@")
            topic, _, partition = place.rpartition(":")
            if not topic or not _is_number(partition) or (at and not _is_number(start)):
                raise UsageError(
                    f"{part!r} names no input", hint="write topic:partition or topic:partition@start"
                )
            if part.endswith("+"):
                growing.add(topic)
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
        return cls(tuple(queues), tuple(starts), frozenset(one for one in queues if one[0] in growing))

    def __str__(self) -> str:
        return ",".join(
            f"{topic}:{partition}@{start}" + "+" * ((topic, partition) in self.growing)
            for (topic, partition), start in zip(self.queues, self.starts, strict=True)
        )


class EndOffsets:
    """Knows where the inputs of all shards of a process end. Who wants to know asks; who rests is woken.

    Looking: one question to Kafka for all who want to know at once. Kafka's client answers such a question when
    the last broker has, so one that is dead would hold up the others' answers. Once a partition has not answered,
    each is asked on its own, until all of them answer again.

    Watching: when no input has grown for `CALM` seconds, the inputs themselves are followed from where they end.
    That costs next to nothing while nothing comes, and the first record ends the rest of all machines at once.
    """

    def __init__(self, log: Log, shards: Sequence[Shard], *, fresh: float = 0.001) -> None:
        """An answer that is not older than `fresh` seconds is not asked for again."""
        self._log = log
        self._places = sorted({queue for shard in shards for queue in shard.queues})
        self._fresh = fresh
        self._asked_at = float("-inf")
        self._moved_at = float("-inf")
        self._known: dict[Queue, int] = {}
        self._waiting: list[Callable[[], None]] = []
        self._is_asking = False
        self._apart: set[Queue] = set()
        self._silent: set[Queue] = set()
        self._behind: dict[Queue, int] = {}
        self._calm = asyncio.Event()
        self._woken: list[Callable[[], None]] = []
        self._following: asyncio.Future[Any] | None = None

    def known(self, shard: Shard, added: Sequence[Queue] = ()) -> Ends:
        """Where the queues of a shard end, and those that were `added` to it."""
        return Ends(
            tuple(self._known.get(queue) for queue in shard.queues),
            tuple((*queue, self._known[queue]) for queue in added if queue in self._known),
        )

    def add(self, queues: Sequence[Queue]) -> None:
        """Look at these too from now on."""
        self._places = sorted({*self._places, *queues})
        self._calm.clear()
        if self._following is not None:
            self._following.cancel()

    @property
    def rests(self) -> bool:
        """Whether no input has grown for a while."""
        return self._calm.is_set()

    def look(self, then: Callable[[], None]) -> None:
        """Ask where the inputs end, and call `then` when more is known."""
        loop = asyncio.get_running_loop()
        if self._silent:
            self._waiting.append(then)
            self._ask_apart(loop)
        elif self._is_asking:
            self._waiting.append(then)
        elif loop.time() - self._asked_at <= self._fresh:
            then()
        else:
            self._waiting.append(then)
            self._asked_at = loop.time()
            self._is_asking = True
            self._ask(self._places, self._asked)

    def on_wake(self, call: Callable[[], None]) -> None:
        """Call this when an input grows after a rest."""
        self._woken.append(call)

    async def watch(self) -> None:
        """Follow the inputs whenever they rest, until cancelled."""
        async with self._log.reader() as reader:
            while True:
                await self._calm.wait()
                places = self._places
                try:
                    for place in places:
                        await reader.subscribe(*place, self._known[place])
                    for record in await self._first(reader):
                        self._learn({(record.topic, record.partition): record.offset + 1})
                except LockstepError as error:
                    logger.debug("cannot follow the inputs while they rest: %s", error)
                    await asyncio.sleep(CALM)
                finally:
                    for place in places:
                        await reader.unsubscribe(*place)
                for call in self._woken:
                    call()

    async def _first(self, reader: Reader) -> list[LogRecord]:
        """The first records that come in, or none when there are more inputs to follow than before."""
        while self._calm.is_set():
            self._following = asyncio.ensure_future(reader.next(1))
            try:
                await asyncio.wait([self._following])
                if self._following.cancelled():
                    return []
                if records := self._following.result():
                    return list(records)
            finally:
                self._following.cancel()
                self._following = None
        return []

    # Coroutines and tasks would cost more than all the rest: a look is made hundreds of times a second.

    def _ask(self, places: Sequence[Queue], then: Callable[[], None]) -> None:
        def answered(answer: "asyncio.Future[dict[Queue, int]]") -> None:
            if answer.cancelled():
                return
            found = {} if answer.exception() is not None else answer.result()
            for place in places:
                if place in found:
                    self._silent.discard(place)
                else:
                    self._silent.add(place)
            self._learn(found)
            then()

        try:
            self._log.ends(places, seconds=_ANSWER_SECONDS).add_done_callback(answered)
        except LockstepError as error:
            logger.debug("cannot ask where the inputs end, the last cut stands: %s", error)
            then()

    def _asked(self) -> None:
        self._is_asking = False
        self._tell()

    def _ask_apart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Each on its own; those that answer do not wait for those that may not."""
        for place in self._places:
            if place not in self._apart:
                self._apart.add(place)
                self._ask([place], lambda place=place: self._apart.discard(place))  # type: ignore[misc]
        loop.call_later(_APART_SECONDS, self._tell)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _learn(self, found: Mapping[Queue, int]) -> None:
        now = asyncio.get_running_loop().time()
        for place, end in found.items():
            known = self._known.get(place, -1)
            self._behind[place] = self._behind.get(place, 0) + 1 if end < known else 0
            if known < end:
                self._known[place] = end
                self._moved_at = now
            elif self._behind[place] == _SHRUNK_LOOKS:
                logger.error(
                    "%s/%d ends at %d and ended at %d before: it was deleted and created again, or has lost "
                    "records; no cut goes back, so its inputs wait until it is there again",
                    *place,
                    end,
                    known,
                )
        if now - self._moved_at < CALM or len(self._known) < len(self._places):
            self._calm.clear()
        else:
            self._calm.set()


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
        self._is_asking = False
        self._added: list[Queue] = []
        ends.on_wake(self._tell_ends)
        self.host = Host(machine, node=node, log=log, deliver=self._delivered)

    def tell(self, command: Any) -> None:
        """Give the machine a command; nobody waits for its answer."""
        self.host.submit(command).add_done_callback(lambda told: told.cancelled() or told.exception())

    async def stop(self) -> None:
        await self.host.stop()

    def _delivered(self, item: Any) -> None:
        if isinstance(item, Admitted):
            self._added += item.queues
            self._ends.add(item.queues)
        if not isinstance(item, AskEnds):
            if self._deliver is not None:
                self._deliver(item)
        elif not self._is_asking:
            self._is_asking = True
            self._ends.look(self._looked)

    def _looked(self) -> None:
        self._is_asking = False
        self._tell_ends()

    def _tell_ends(self) -> None:
        self.tell(self._ends.known(self._shard, self._added))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
