"""Make the checkout's virtual environment: `python3 src/lockstep/setup/venv.py`, called by the Makefile.

It runs before anything is installed, so it uses the standard library alone and imports nothing of Lockstep,
and it keeps to syntax that an old Python can read far enough to be told that it is too old.

An environment is good only if its stamp says so. The stamp holds a hash of everything that the environment
was made from, is written last, and is removed before anything is changed: an interrupted run leaves an
environment without a stamp, and the next run starts it afresh.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def main():  # type: () -> int
    if sys.version_info < OLDEST_PYTHON:
        return _fail(
            "Python %d.%d is too old" % sys.version_info[:2],
            "install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3",
        )
    root = Path(__file__).resolve().parents[3]
    try:
        with open(root / ".venv.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second waits, then finds it done
            return ensure(root)
    except OSError as error:
        return _fail("cannot make %s: %s" % (root / ".venv", error.strerror or error), "free or change the disk")


def ensure(root):  # type: (Path) -> int
    """Bring `root/.venv` to what the lock file says. Without a change it reads two files and a stamp."""
    venv = root / ".venv"
    stamp = venv / ".stamp"
    wanted = fingerprint(root)
    if stamp.is_file() and stamp.read_text() == wanted and (venv / "bin" / "lockstep").exists():
        return 0
    whole = stamp.is_file() and (venv / "bin" / "python").exists()
    if whole:
        stamp.unlink()
    steps = [] if whole else [[sys.executable, "-m", "venv", "--clear", str(venv)]]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    steps.append([*pip, "--require-hashes", "-r", str(root / "requirements.lock")])
    steps.append([*pip, "--quiet", "--no-deps", "--no-build-isolation", "-e", str(root)])
    print("lockstep: making the virtual environment %s (the first time takes minutes)" % venv, flush=True)
    for step in steps:
        code = subprocess.call(step)
        if code != 0:
            return _fail(
                "could not make the virtual environment (%s)" % " ".join(step[1:4]),
                "see the message above; with the network or disk repaired, run the same command again",
            )
    unfinished = venv / ".stamp.tmp"
    unfinished.write_text(wanted)
    os.replace(unfinished, stamp)
    return 0


def fingerprint(root):  # type: (Path) -> str
    """Everything that the environment's content depends on, its own place included (scripts name it)."""
    digest = hashlib.sha256()
    for part in (
        str(root).encode(),
        sys.version.encode(),
        (root / "requirements.lock").read_bytes(),
        (root / "pyproject.toml").read_bytes(),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _fail(what, todo):  # type: (str, str) -> int
    print("lockstep: %s\n  %s" % (what, todo), file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("lockstep: stopped", file=sys.stderr)
        sys.exit(130)
