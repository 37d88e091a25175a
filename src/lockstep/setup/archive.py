"""Class archives: a JVM maps its classes from one file instead of loading thousands of them from jars.

A site and a broker start sooner and with less processor time, which on a small machine is taken from the sites
that live on. Set-up records an archive in a rehearsal, a short run of a pipeline on a broker.
Without one, or with one of other jars or of another Java, all works as before, only slower: the JVM compares.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from lockstep import home
from lockstep.setup import build, ivy, jars, java

Kind = Literal["spark", "kafka"]
KINDS: tuple[Kind, ...] = ("spark", "kafka")

_RECORD = "LOCKSTEP_RECORD_CLASSES"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
_REHEARSAL_SECONDS = 300


def options(kind: Kind) -> list[str]:
    """The options for a JVM of this kind: those that use its archive, if there is one."""
    if folder := os.environ.get(_RECORD):
        return [f"-XX:ArchiveClassesAtExit={Path(folder) / kind}.jsa", *_QUIET]
    archive = _place(kind)
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.is_file() else []


def outdated() -> bool:
    """Whether a kind has no archive that fits the jars and the Java."""
    return not all(_place(kind).is_file() for kind in KINDS)


def record() -> str:
    """Make the archives anew. An empty string, or why there are none."""
    folder = _folder()
    with jars.disk_errors():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".recording-", dir=folder) as scratch:
            problem = _rehearse(Path(scratch))
            made = {kind: Path(scratch) / f"{kind}.jsa" for kind in KINDS}
            absent = [kind for kind, path in made.items() if not path.is_file()]
            if problem or absent:
                return problem or f"the JVM wrote no archive for {' and '.join(absent)}"
            for old in folder.glob("*.jsa"):
                old.unlink()
            for kind, path in made.items():
                path.rename(_place(kind))
    return ""


def _rehearse(scratch: Path) -> str:
    command = [sys.executable, "-m", "lockstep.spark.rehearsal", str(scratch / "run")]
    try:
        answer = subprocess.run(
            command,
            env={**os.environ, _RECORD: str(scratch)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_REHEARSAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"the rehearsal took more than {_REHEARSAL_SECONDS} s"
    lines = answer.stderr.strip().splitlines() or ["no word"]
    return "" if answer.returncode == 0 else f"the rehearsal ended with {answer.returncode}: {lines[-1]}"


def _folder() -> Path:
    return home.home() / "archives"


def _place(kind: Kind) -> Path:
    return _folder() / f"{kind}-{_fingerprint(kind)}.jsa"


def _fingerprint(kind: Kind) -> str:
    """Of what the JVM compares too: itself, and names, sizes and times of the jars."""
    found = java.find()
    files = list(jars.classpath(kind))
    if kind == "spark":
        files += [build.jar(), *sorted(ivy.pyspark_jars().glob("*.jar"))]
    release = found.home / "release"
    parts = [str(found.home), release.read_text(errors="replace") if release.is_file() else ""]
    for path in files:
        status = path.stat()
        parts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
