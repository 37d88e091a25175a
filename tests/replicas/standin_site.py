"""A stand-in for a site process: speaks the status protocol, has a child as a site has a JVM, computes nothing.

Files in the run folder tell it how to behave: `refuse-SITE` (exit 2), `never-SITE` (die while starting),
`behind-SITE` (it is catching up).
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from lockstep.replicas.layout import RunFolder, write_json


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-folder", type=Path)
    parser.add_argument("--site")
    given = parser.parse_args()
    run = RunFolder(given.run_folder)
    folder = run.site(given.site)

    def asked(what: str) -> Path:
        return given.run_folder / f"{what}-{given.site}"

    def report(state: str, error: str | None = None) -> None:
        status = {"site": given.site, "pid": os.getpid(), "state": state, "error": error, "jvm_pid": None}
        write_json(folder.status_file, status)

    if asked("refuse").exists():
        report("failed", "the pipeline is wrong")
        sys.exit(2)
    if asked("never").exists():
        report("failed", "no luck")
        sys.exit(1)
    child = subprocess.Popen(["tail", "-f", "/dev/null"])
    (folder.path / "child").write_text(str(child.pid))
    while True:
        report("catching up" if asked("behind").exists() else "running")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
