"""One of our servers, as `lockstep coord serve` runs it, for the coordination bench: it also writes down when
it begins to look, has decided and serves, and its disk can be made slow (the paper's HDD, section 6).

    python -m lockstep.bench.coordination_server ID SERVERS FOLDER VARIANT TICK SLOW_DISK MARKS
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from lockstep.coordination import membership
from lockstep.coordination.node import Node, NodeConfig
from lockstep.coordination.zab.interface import Following, Leading, Looking
from lockstep.coordination.zab.settings import Variant, variant
from lockstep.protocol.machine import Effects
from lockstep.protocol.storage import History


class MarkingNode(Node):
    """A node that notes each change of its role: one short write to a file in memory's cache."""

    def __init__(self, config: NodeConfig, marks: Path) -> None:
        super().__init__(config)
        self._marks = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._had_role = False

    def _input(self, handler: Callable[..., Effects], *arguments: Any) -> None:
        super()._input(handler, *arguments)
        has_role = self._machine.role is not None
        if has_role != self._had_role:
            self._had_role = has_role
            if has_role:
                self._mark("decided")

    def _deliver(self, item: Any) -> None:
        match item:
            case Looking():
                self._mark("looking")
            case Leading():
                self._mark("serving")
            case Following():
                self._mark("following")
        super()._deliver(item)

    def _mark(self, moment: str) -> None:
        os.write(self._marks, f"{time.monotonic():.6f} {moment}\n".encode())


def slow_down(seconds: float) -> None:
    """Let every durable write of this process take so much longer."""
    append = History.append

    def slow_append(history: History, records: Sequence[bytes]) -> None:
        append(history, records)
        time.sleep(seconds)

    History.append = slow_append  # type: ignore[method-assign, assignment]


def main(arguments: Sequence[str]) -> None:
    import uvloop

    server, servers, folder, technique, tick, slow_disk, marks = arguments
    if float(slow_disk):
        slow_down(float(slow_disk))
    config = NodeConfig(
        int(server),
        membership.parse(servers),
        Path(folder),
        tick_ms=int(tick),
        zab=variant(cast(Variant, technique)),
    )
    uvloop.run(_serve(MarkingNode(config, Path(marks))))


async def _serve(node: Node) -> None:
    await node.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.end)
    try:
        await node.ended()
    finally:
        await node.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
