"""Make the checkout's virtual environment: `python3 src/lockstep/setup/venv.py`, called by the Makefile.

It runs before anything is installed, so it uses the standard library alone and imports nothing of Lockstep,
and it keeps to syntax that an old Python can read far enough to be told that it is too old.

An environment is good only if its stamp says so. The stamp holds a hash of everything that the environment
was made from, is written last, and is removed before anything is changed: an interrupted run leaves an
environment without a stamp, and the next run starts it afresh.
"""

from __future__ import annotations

import collections
import fcntl
import hashlib
import json
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def main() -> int:
    if sys.version_info < OLDEST_PYTHON:
        return _fail(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old",
            "install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3",
        )
    root = Path(__file__).resolve().parents[3]
    try:
        with (root / ".venv.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second waits, then finds it done
            return ensure(root)
    except OSError as error:
        return _fail(
            f"cannot make {root / '.venv'}: {(error.strerror or str(error)).lower()}",
            "free or repair the disk, or clone to another one",
        )


def ensure(root: Path) -> int:
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
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    steps.append([*pip, "--require-hashes", "-r", str(root / "requirements.lock")])
    steps.append([*pip, "--quiet", "--no-deps", "--no-build-isolation", "-e", str(root)])
    print(f"lockstep: making the virtual environment {venv} (the first time takes minutes)", flush=True)
    for step in steps:
        code, said = _run(step, root)
        if code != 0:
            print(said, file=sys.stderr)
            return _fail(
                f"could not make the virtual environment: {' '.join(step[1:4])} failed",
                "its message is above; with the network or disk repaired, run the same command again",
            )
    unfinished = venv / ".stamp.tmp"
    unfinished.write_text(wanted)
    unfinished.replace(stamp)
    return 0


def fingerprint(root: Path) -> str:
    """Everything that the environment's content depends on, its own place included (scripts name it)."""
    digest = hashlib.sha256()
    for part in (
        str(root).encode(),
        sys.version.encode(),
        (root / "requirements.lock").read_bytes(),
        _installed_from(root / "pyproject.toml"),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _installed_from(pyproject: Path) -> bytes:
    """The tables that an installation depends on; the settings of linters and tests are none of them."""
    import tomllib  # not at the top: an old Python lacks it

    tables = tomllib.loads(pyproject.read_text())
    return json.dumps([tables["build-system"], tables["project"], tables["tool"]["hatch"]]).encode()


def _run(step: list[str], root: Path) -> tuple[int, str]:
    """Run a step, count the packages that pip names, and keep the end of what it says for when it fails."""
    pins = (root / "requirements.lock").read_text().count("==")
    last: collections.deque[str] = collections.deque(maxlen=30)
    collected = 0
    with subprocess.Popen(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout or ():
            last.append(line.rstrip())
            if line.startswith("Collecting "):
                collected += 1
                _show(f"packages: {collected} of {pins} ({line.split()[1]})", collected % 20 == 0)
            elif line.startswith("Installing collected packages"):
                _show(f"installing {collected} packages", True)
    if collected and sys.stdout.isatty():
        print()
    return running.returncode, "\n".join(last)


def _show(text: str, milestone: bool) -> None:
    """Progress on one line of a terminal; in a log, only now and then."""
    if sys.stdout.isatty():
        print(f"\r\033[K  {text}", end="", flush=True)
    elif milestone:
        print(f"  {text}", flush=True)


def _fail(what: str, todo: str) -> int:
    print(f"lockstep: {what}\n  {todo}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nlockstep: stopped", file=sys.stderr)
        sys.exit(130)
