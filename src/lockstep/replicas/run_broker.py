"""`python -m lockstep.replicas.run_broker FOLDER`: the embedded broker as a process of its own.

A broker's nodes die with the process that holds it. The broker of a run must live as long as its sites,
which may outlive their supervisor: so it is held by this process, which is started and adopted like a site.
"""

import signal
import sys
import threading
import time
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.observe import logger as logs
from lockstep.replicas.layout import ProcessFolder, write_json


def main() -> int:
    folder = ProcessFolder(Path(sys.argv[1]))
    logs.configure()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def report(state: str, servers: str = "", error: str | None = None) -> None:
        status = {"state": state, "bootstrap_servers": servers, "error": error, "updated": time.time()}
        write_json(folder.status_file, status)

    report("starting")
    try:
        with Broker(folder.path / "kafka") as broker:
            report("running", broker.bootstrap_servers)
            while not stop.wait(0.25):
                broker.check()
    except LockstepError as error:
        report("failed", error=str(error))
        print(f"lockstep broker: {error}", file=sys.stderr)
        return 1
    report("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
