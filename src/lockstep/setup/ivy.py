"""Resolve and download jars with the Ivy that PySpark ships: no Maven, and no host name of our own.

Ivy's `ibiblio` resolver knows where Maven Central is. `$LOCKSTEP_MAVEN_MIRROR` names another Maven
repository. What Ivy has already downloaded stays in its cache until the whole set is there, so that a
fetch that was interrupted goes on where it stopped.
"""

import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.setup.java import Java

ATTEMPTS = 3
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Module:
    organisation: str
    name: str
    revision: str
    transitive: bool = False
    """Whether the module's own runtime dependencies are fetched too."""


def retrieve(
    modules: Sequence[Module], into: Path, *, cache: Path, java: Java, progress: Callable[[int], None]
) -> None:
    """Download `modules` into the folder `into`; `progress` hears how many files have arrived."""
    cache.mkdir(parents=True, exist_ok=True)
    into.mkdir(parents=True, exist_ok=True)
    (cache / "settings.xml").write_text(_settings(cache, os.environ.get("LOCKSTEP_MAVEN_MIRROR", "")))
    (cache / "ivy.xml").write_text(_descriptor(modules))
    log = cache / "ivy.log"
    command = [
        str(java.java),
        "-cp",
        str(_ivy_jar()),
        "org.apache.ivy.Main",
        "-settings",
        str(cache / "settings.xml"),
        "-ivy",
        str(cache / "ivy.xml"),
        "-retrieve",
        str(into / "[artifact]-[revision](-[classifier]).[ext]"),
    ]
    for _attempt in range(ATTEMPTS):
        log.unlink(missing_ok=True)
        if _run(command, log, progress) == 0:
            return
        if trouble := _disk_trouble(log):
            raise LockstepError(
                f"cannot write the jars to {into.parent}: {trouble}",
                hint="free or repair the disk, or set LOCKSTEP_HOME to a folder on another one",
            )
    raise LockstepError(
        f"could not download jars: {_reason(log)}",
        hint="check the network (or set LOCKSTEP_MAVEN_MIRROR to a Maven repository you can reach), then run: "
        f"lockstep setup   (details: {log})",
    )


def pyspark_jars() -> Path:
    """The folder of the jars that PySpark ships, found without importing PySpark (which takes a second)."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        if (Path(place) / "jars").is_dir():
            return Path(place) / "jars"
    raise LockstepError("PySpark is not installed beside Lockstep", hint="run: make setup")


def _ivy_jar() -> Path:
    found = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise LockstepError(
            f"PySpark ships no Ivy in {pyspark_jars()}", hint="reinstall it: make clean, make setup"
        )
    return found[-1]


def _run(command: Sequence[str], log: Path, progress: Callable[[int], None]) -> int:
    ivy = process.launch(command, log=log)
    try:
        while True:
            code = ivy.poll()
            progress(log.read_text(errors="replace").count("[SUCCESSFUL ]"))
            if code is not None:
                return code
            time.sleep(_POLL_SECONDS)
    finally:
        process.kill(ivy)


def _disk_trouble(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    found = re.search(
        r"No space left on device|Disk quota exceeded|File too large|Read-only file system", text
    )
    return found[0].lower() if found else ""


def _reason(log: Path) -> str:
    """The line of Ivy's log that says most to a person."""
    text = log.read_text(errors="replace") if log.exists() else ""
    for pattern in (
        r"Server access error.*",
        r"Host .* not found.*",
        r"unresolved dependency: .*",
        r"\[FAILED\s*\].*",
    ):
        if found := re.search(pattern, text):
            return " ".join(found[0].split())[:200]
    return "Ivy failed"


def _settings(cache: Path, mirror: str) -> str:
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    return f"""<ivysettings>
  <settings defaultResolver="maven"/>
  <caches defaultCacheDir={quoteattr(str(cache / "cache"))}/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="15000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers><ibiblio name="maven" m2compatible="true" timeoutConstraint="bounded"{root}/></resolvers>
</ivysettings>
"""


def _descriptor(modules: Sequence[Module]) -> str:
    wanted = "\n".join(
        f"    <dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)}"
        f' rev={quoteattr(module.revision)} conf="default->{"default" if module.transitive else "master"}"/>'
        for module in modules
    )
    return f"""<ivy-module version="2.0">
  <info organisation="io.lockstep" module="classpath"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{wanted}
  </dependencies>
</ivy-module>
"""
