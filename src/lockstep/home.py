"""Where Lockstep keeps what it downloads and what it runs: the one place that decides on paths.

`$LOCKSTEP_HOME` wins. A source checkout keeps everything in its own ignored `.lockstep/`, so that a clone
is self-contained and `make clean` removes all of it. An installed wheel uses the user's cache folder.
"""

import os
from pathlib import Path


def checkout() -> Path | None:
    """The root of the source checkout that this package runs from, or None for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "jvm").is_dir() else None


def home() -> Path:
    configured = os.environ.get("LOCKSTEP_HOME")
    if configured:
        return Path(configured).expanduser().resolve()
    root = checkout()
    if root is not None:
        return root / ".lockstep"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "lockstep"


def jars_folder(name: str) -> Path:
    """The jars of one classpath (`spark`, `kafka`, ...). Two classpaths never share a folder."""
    return home() / "jars" / name


def runs_folder() -> Path:
    """Data of brokers, sites and ensembles that commands start."""
    return home() / "runs"
