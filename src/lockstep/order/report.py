"""What an order-making process has to say: one JSON object a line on standard output.

Whoever supervises it keeps the lines in its log and shows the last of each kind. What is said:

- `elected`, `leading`, `following`, `deposed`: how leaders change (`lead.py`);
- `void`: how many records of the order topic did not count. A few come from take-overs and from several
  generators; many mean that somebody else writes to the topic;
- `grown`: a topic has partitions that no shard reads;
- `admitted`: partitions that were added to an input are read from now on (`growth.py`).
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from lockstep.errors import LockstepError
from lockstep.log.interface import Log
from lockstep.observe.logger import get_logger
from lockstep.order.inputs import Shard

logger = get_logger(__name__)

_VOID_SECONDS = 1.0
LOOK_SECONDS = 10.0
"""Between two looks for partitions that no shard reads."""


def say(what: str, **more: object) -> None:
    line = msgspec.json.encode({"is": what, "at": round(time.time(), 4), **more})
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


async def report_void(name: str, count: Callable[[], int]) -> None:
    """Say how many void records there are, whenever that has changed."""
    said = 0
    while True:
        await asyncio.sleep(_VOID_SECONDS)
        if (void := count()) != said:
            said = void
            say("void", name=name, records=void)


async def report_growth(name: str, log: Log, shards: Sequence[Shard]) -> None:
    """Say it when a topic has got partitions that no shard reads: their records reach nobody."""
    said: dict[str, list[int]] = {}
    while True:
        for topic in sorted({topic for shard in shards for topic, _ in shard.queues}):
            try:
                unread = unread_partitions(topic, await log.partitions(topic), shards)
            except LockstepError as error:
                logger.debug("cannot ask for the partitions of %s: %s", topic, error)
                continue
            say_unread(name, topic, unread, said)
        await asyncio.sleep(LOOK_SECONDS)


def say_unread(name: str, topic: str, unread: list[int], said: dict[str, list[int]]) -> None:
    """Say it once; `said` remembers."""
    if unread and said.get(topic) != unread:
        said[topic] = unread
        say("grown", name=name, topic=topic, unread=unread, hint=GROWN_HINT)


GROWN_HINT = (
    "this run does not read them, because keys have moved between partitions: let it finish what it reads, "
    "stop it, and begin a new run, which reads all partitions from where they stand"
)


def unread_partitions(topic: str, count: int, shards: Sequence[Shard]) -> list[int]:
    """The partitions of a topic that no shard reads."""
    read = {partition for shard in shards for name, partition in shard.queues if name == topic}
    return [partition for partition in range(count) if partition not in read]
