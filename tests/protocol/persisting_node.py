"""A node that counts on its disk until it is killed: `persisting_node.py FOLDER CONFIRMED COMPACT_EVERY [early]`.

Every number that its machine delivers is appended to the file CONFIRMED with one write, so that the killer
knows what had been confirmed. `early` plants a bug: numbers are delivered before they are safe, and the
node kills itself at once.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lockstep.protocol.host import Host, serve
from protocol.machines import Counting


def main(folder: Path, confirmed: Path, compact_every: int, early: bool) -> None:
    told = os.open(confirmed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def deliver(number: int) -> None:
        os.write(told, f"{number}\n".encode())
        if early and number >= 63:
            os.kill(os.getpid(), signal.SIGKILL)

    machine = Counting(compact_every=compact_every, early=early)
    serve(lambda: Host(machine, node="counting", folder=folder, deliver=deliver))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), "early" in sys.argv)
