"""What an order-making process has to say: one JSON object a line on standard output.

Whoever supervises it keeps the lines in its log and shows the last of each kind. What is said:

- `elected`, `leading`, `following`, `deposed`: how leaders change (`lead.py`);
- `void`: how many records of the order topic did not count. A few come from take-overs and from several
  generators; many mean that somebody else writes to the topic;
- `grown`: a topic has partitions that no shard reads (`growth.py`);
- `admitted`: partitions that were added to an input are read from now on.
"""

import asyncio
import sys
import time
from collections.abc import Callable

import msgspec

_VOID_SECONDS = 1.0


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
