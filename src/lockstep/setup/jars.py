"""The pinned jars: one folder for each classpath, `classpath(name)` to use it, `fetch(name)` to fill it.

`jars.lock` (in this package) says, for each set, which files it holds and their SHA-256. A fetch goes like this,
and is atomic because of the order:

1. Ivy downloads into a folder of this fetch's own.
2. Every file is compared with the lock: nothing missing, nothing more, every checksum right.
3. A stamp with each file's size and time is written beside them.
4. One rename puts the folder where `classpath` looks.

A folder without a stamp that fits the lock and the files is not there as far as anyone is concerned. So a later
run costs a few `stat` calls; `verify` reads every byte (`lockstep doctor`).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from lockstep import home
from lockstep.errors import LockstepError, UsageError
from lockstep.setup import ivy
from lockstep.setup.ivy import Module
from lockstep.setup.java import Java

SETS: dict[str, tuple[Module, ...]] = {
    # Beside the jars of PySpark, which has the rest of what these need: hence not transitive.
    "spark": (
        Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        Module("org.apache.kafka", "kafka-clients", "3.9.2"),
        Module("org.apache.commons", "commons-pool2", "2.13.1"),
    ),
    # The embedded broker. Its classpath never meets Spark's.
    "kafka": (
        Module("org.apache.kafka", "kafka_2.13", "4.3.1", transitive=True),
        Module("org.slf4j", "slf4j-simple", "1.7.36"),  # else the broker's warnings go nowhere
    ),
    # The last Kafka that keeps its metadata in ZooKeeper: only for experiments on coordination.
    "kafka-zookeeper": (Module("org.apache.kafka", "kafka_2.13", "3.9.1", transitive=True),),
}
DEFAULT_SETS = ("spark", "kafka")

_LOCK = Path(__file__).with_name("jars.lock")
_STAMP = ".verified.json"


def classpath(name: str) -> list[Path]:
    """The jars of a set, checked against what set-up verified by their size and time."""
    problem = missing(name)
    if problem:
        raise LockstepError(f"the {name} jars are not ready: {problem}", hint=f"run: {setup_command(name)}")
    return [home.jars_folder(name) / file for file in sorted(locked(name))]


def missing(name: str) -> str:
    """Why the set cannot be used, or an empty string. Cheap: it reads no jar."""
    files = locked(name)
    folder = home.jars_folder(name)
    try:
        stamp = json.loads((folder / _STAMP).read_text())
    except FileNotFoundError:
        return f"{folder} was never completed" if folder.is_dir() else f"there is no {folder}"
    except (OSError, ValueError) as error:
        return f"{folder / _STAMP} cannot be read ({error})"
    if not isinstance(stamp, dict) or stamp.get("lock") != _digest_of(files):
        return "the lock file names other versions"
    seen = stamp.get("files", {})
    for file in files:
        try:
            status = (folder / file).stat()
        except OSError:
            return f"{file} is gone"
        if seen.get(file) != [status.st_size, status.st_mtime_ns]:
            return f"{file} changed since it was verified"
    return ""


def verify(name: str) -> str:
    """Read every jar of the set and compare checksums: the first that is wrong, or an empty string.

    A set that is found corrupt loses its stamp, so that the next set-up fetches it again.
    """
    problem = missing(name)
    if problem:
        return problem
    folder = home.jars_folder(name)
    problem = _difference(folder, locked(name))
    if problem:
        with contextlib.suppress(OSError):
            (folder / _STAMP).unlink()
    return problem


def fetch(name: str, *, java: Java, progress: Callable[[int], None] = lambda arrived: None) -> None:
    """Download a set, verify it and put it in place. A set that is already good is left alone."""
    files = locked(name)
    folder = home.jars_folder(name)
    with disk_errors(), _only_one():
        if not missing(name):
            return
        _sweep(folder.parent)
        if not _difference(folder, files):  # whole, only its stamp is missing or out of date
            _stamp(folder, files)
            return
        cache = home.home() / "ivy" / name
        arriving = folder.parent / f".arriving-{name}-{os.getpid()}"
        ivy.retrieve(SETS[name], arriving, cache=cache, java=java, progress=progress)
        problem = _difference(arriving, files)
        if problem:
            shutil.rmtree(arriving)
            shutil.rmtree(cache)
            raise LockstepError(
                f"the {name} jars that were downloaded are not those in jars.lock: {problem}",
                hint=f"nothing was kept; try again: {setup_command(name)}; if it stays, do not trust the mirror",
            )
        _put_in_place(arriving, folder, files)
        shutil.rmtree(cache)


def relock(name: str, *, java: Java, progress: Callable[[int], None] = lambda arrived: None) -> None:
    """Write what the pins of a set resolve to today into the lock file, and keep those jars (`make lock`)."""
    folder = home.jars_folder(name)
    with disk_errors(), _only_one():
        _sweep(folder.parent)
        cache = home.home() / "ivy" / name
        arriving = folder.parent / f".arriving-{name}-{os.getpid()}"
        ivy.retrieve(SETS[name], arriving, cache=cache, java=java, progress=progress)
        lock = json.loads(_LOCK.read_text()) if _LOCK.exists() else {}
        lock[name] = {path.name: _sha256(path) for path in sorted(arriving.glob("*.jar"))}
        unfinished = _LOCK.with_suffix(".tmp")
        unfinished.write_text(json.dumps(lock, indent=1, sort_keys=True) + "\n")
        unfinished.rename(_LOCK)
        _put_in_place(arriving, folder, lock[name])
        shutil.rmtree(cache)


def locked(name: str) -> dict[str, str]:
    """File name -> SHA-256 of a set."""
    if name not in SETS:
        raise UsageError(f"no set of jars is called {name!r}", hint=f"one of: {', '.join(SETS)}")
    files: dict[str, str] = json.loads(_LOCK.read_text()).get(name, {})
    return files


def setup_command(name: str) -> str:
    return "lockstep setup" if name in DEFAULT_SETS else f"lockstep setup --set {name}"


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """A full, read-only or broken disk becomes an error that says which folder and what to do."""
    try:
        yield
    except OSError as error:
        raise LockstepError(
            f"cannot write to {error.filename or home.home()}: {(error.strerror or str(error)).lower()}",
            hint="free or repair the disk, or set LOCKSTEP_HOME to a folder on another one",
        ) from error


def _difference(folder: Path, files: dict[str, str]) -> str:
    present = {path.name for path in folder.glob("*.jar")}
    if absent := sorted(files.keys() - present):
        return f"{absent[0]} is missing"
    if extra := sorted(present - files.keys()):
        return f"{extra[0]} is not in the lock file"
    for file, checksum in files.items():
        if _sha256(folder / file) != checksum:
            return f"{file} is corrupt (its checksum is wrong)"
    return ""


def _put_in_place(arriving: Path, folder: Path, files: dict[str, str]) -> None:
    _stamp(arriving, files)
    if folder.exists():
        folder.rename(folder.parent / f".leaving-{folder.name}-{os.getpid()}")
    arriving.rename(folder)
    _sweep(folder.parent)


def _stamp(folder: Path, files: dict[str, str]) -> None:
    status = {file: (folder / file).stat() for file in files}
    content = {
        "lock": _digest_of(files),
        "files": {file: [one.st_size, one.st_mtime_ns] for file, one in status.items()},
    }
    unfinished = folder / f"{_STAMP}.tmp"
    unfinished.write_text(json.dumps(content))
    unfinished.rename(folder / _STAMP)


def _digest_of(files: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what interrupted fetches left. Only under the lock, so no fetch is under way."""
    for pattern in (".arriving-*", ".leaving-*"):
        for leftover in folder.glob(pattern):
            shutil.rmtree(leftover)


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """One fetch at a time; a second waits and then finds the jars there."""
    home.home().mkdir(parents=True, exist_ok=True)
    with (home.home() / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
