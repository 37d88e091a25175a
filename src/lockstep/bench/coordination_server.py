"""One of our servers, as `lockstep coord serve` runs it, for the coordination bench: it also writes down when
it begins to look, has decided and serves, and its disk can be made slow (the paper's HDD, section 6).

    python -m lockstep.bench.coordination_server ID SERVERS FOLDER VARIANT TICK SLOW_DISK MARKS
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from lockstep.coordination import membership
from lockstep.coordination.config import NodeConfig
from lockstep.coordination.node import Node
from lockstep.coordination.zab.interface import Decided, Delivery, Following, Leading, Looking
from lockstep.coordination.zab.settings import Variant, variant
from lockstep.protocol.runner import serve
from lockstep.protocol.storage import History


class SlowHistory(History):
    """Every durable write takes so much longer."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self._seconds = seconds

    def append(self, records: Sequence[bytes]) -> None:
        super().append(records)
        time.sleep(self._seconds)


class MarkingNode(Node):
    """A node that notes each change of its role: one short write to a file in memory's cache."""

    def __init__(self, config: NodeConfig, marks: Path, slow_disk: float = 0.0) -> None:
        super().__init__(config)
        self._marks = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._slow_disk = slow_disk

    def _open_history(self, folder: Path) -> History:
        return SlowHistory(folder, self._slow_disk) if self._slow_disk else History(folder)

    def _deliver(self, item: Delivery) -> None:
        match item:
            case Looking():
                self._mark("looking")
            case Decided():
                self._mark("decided")
            case Leading():
                self._mark("serving")
            case Following():
                self._mark("following")
        super()._deliver(item)

    def _mark(self, moment: str) -> None:
        os.write(self._marks, f"{time.monotonic():.6f} {moment}\n".encode())


def main(arguments: Sequence[str]) -> None:
    server, servers, folder, technique, tick, slow_disk, marks = arguments
    config = NodeConfig(
        int(server),
        membership.parse(servers),
        Path(folder),
        tick_ms=int(tick),
        zab=variant(cast(Variant, technique)),
    )
    serve(lambda: MarkingNode(config, Path(marks), float(slow_disk)))


if __name__ == "__main__":
    main(sys.argv[1:])
