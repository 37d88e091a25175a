"""Find the Java that everything runs on: `java.find()`.

`$JAVA_HOME` is the user's word: it is taken, or refused with the reason, never silently passed over. Without
it, the `java` on the PATH and then the usual folders are tried, and the first that is good enough wins.
Spark needs Java 17 or newer; compiling `jvm/` needs a JDK, that is, one with `javac`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError

OLDEST = 17
USUAL_FOLDERS = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/Library/Java/JavaVirtualMachines")

_INSTALL = f"install a JDK {OLDEST} or newer and put its java on the PATH, or set JAVA_HOME to its folder"


@dataclass(frozen=True)
class Java:
    home: Path
    java: Path
    javac: Path | None
    """None for a runtime that cannot compile (a JRE)."""
    version: int
    """The feature release: 17, 21, ..."""


def find(*, compiler: bool = False) -> Java:
    """The Java to use. With `compiler`, one that has javac."""
    configured = os.environ.get("JAVA_HOME")
    if configured:
        candidate = _inspect(Path(configured).expanduser())
        problem = _problem(candidate, compiler)
        if candidate is None or problem:
            raise LockstepError(f"JAVA_HOME is {configured}: {problem}", hint=_hint(candidate))
        return candidate
    first_problem: tuple[str, str] | None = None
    for home in _candidates():
        candidate = _inspect(home)
        problem = _problem(candidate, compiler)
        if candidate is not None and not problem:
            return candidate
        if candidate is not None and first_problem is None:
            first_problem = f"the Java in {home}: {problem}", _hint(candidate)
    if first_problem is not None:
        raise LockstepError(first_problem[0], hint=first_problem[1])
    raise LockstepError("no Java was found", hint=_INSTALL)


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parents[1]
    for folder in map(Path, USUAL_FOLDERS):
        if folder.is_dir():
            for home in sorted(folder.iterdir()):
                yield home / "Contents" / "Home" if (home / "Contents" / "Home").is_dir() else home


def _inspect(home: Path) -> Java | None:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    version = _version(home, java)
    if version is None:
        return None
    javac = home / "bin" / "javac"
    return Java(home, java, javac if os.access(javac, os.X_OK) else None, version)


def _problem(candidate: Java | None, compiler: bool) -> str:
    if candidate is None:
        return "there is no working bin/java in it"
    if candidate.version < OLDEST:
        return f"Java {candidate.version} is too old"
    if compiler and candidate.javac is None:
        return "it is a runtime without the compiler javac"
    return ""


def _hint(candidate: Java | None) -> str:
    if candidate is not None and candidate.version >= OLDEST and candidate.javac is None:
        return "install the full JDK of it (on Debian: openjdk-17-jdk-headless), or set JAVA_HOME to one"
    return _INSTALL


def _version(home: Path, java: Path) -> int | None:
    """From the `release` file beside it, or else by asking it, which takes the start of a JVM."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r'JAVA_VERSION="([^"]+)"', text)
    if found is None:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "([^"]+)"', answer.stderr)
    if found is None:
        return None
    numbers = [int(number) for number in re.findall(r"\d+", found[1])]
    if not numbers:
        return None
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]  # 1.8 is Java 8
