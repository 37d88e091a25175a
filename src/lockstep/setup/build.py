"""Compile `jvm/` into `lockstep-spark.jar`, which lies in the package and is shipped in the wheel.

The jar's manifest holds a hash of everything that it was made from, so the jar is its own stamp: it is rebuilt
only when that hash changes, and one rename puts it in place. Its bytes depend on its inputs alone.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from lockstep import __version__, home
from lockstep.errors import LockstepError
from lockstep.setup import ivy, jars, java

JAR = Path(__file__).resolve().parents[1] / "spark" / "lockstep-spark.jar"

_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_SHOWN_LINES = 40


def jar() -> Path:
    """The compiled source and sink, for a Spark classpath."""
    if not JAR.is_file():
        raise LockstepError("our own Java is not compiled", hint="run: lockstep setup")
    return JAR


def outdated() -> str:
    """Why the jar has to be built, or an empty string. A wheel's jar is never outdated: it has no sources."""
    if not JAR.is_file():
        return f"there is no {JAR.name}"
    root = home.checkout()
    if root is not None and _built_from(JAR) != _fingerprint(root):
        return "jvm/ changed since it was compiled"
    return ""


def build() -> bool:
    """Bring the jar up to date; whether there was something to do."""
    if not outdated():
        return False
    root = home.checkout()
    if root is None:
        raise LockstepError(f"this installation lacks {JAR.name}", hint="reinstall lockstep-spark")
    compiler = java.find(compiler=True)
    fingerprint = _fingerprint(root)
    with jars.disk_errors():
        JAR.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=JAR.parent) as scratch:
            classes = Path(scratch) / "classes"
            _compile(compiler, _sources(root), classes)
            resources = root / "jvm" / "src" / "main" / "resources"
            if resources.is_dir():
                shutil.copytree(resources, classes, dirs_exist_ok=True)
            unfinished = Path(scratch) / JAR.name
            _package(classes, unfinished, fingerprint)
            unfinished.rename(JAR)
    return True


def _sources(root: Path) -> list[Path]:
    return sorted((root / "jvm" / "src" / "main" / "java").rglob("*.java"))


def _compile(compiler: java.Java, sources: list[Path], classes: Path) -> None:
    classes.mkdir()
    classpath = os.pathsep.join(
        map(str, [*sorted(ivy.pyspark_jars().glob("*.jar")), *jars.classpath("spark")])
    )
    arguments = classes.with_name("arguments")
    options = [
        "-d",
        classes,
        "-classpath",
        classpath,
        "--release",
        java.OLDEST,
        "-encoding",
        "UTF-8",
        "-proc:none",
    ]
    arguments.write_text("\n".join(f'"{_escaped(str(word))}"' for word in [*options, *sources]))
    answer = subprocess.run([str(compiler.javac), f"@{arguments}"], capture_output=True, text=True)
    if answer.returncode != 0:
        shown = "\n".join((answer.stderr + answer.stdout).strip().splitlines()[:_SHOWN_LINES])
        raise LockstepError(
            f"javac refused jvm/:\n{shown}", hint="repair the Java above, then run: lockstep setup"
        )


def _escaped(word: str) -> str:
    """A word of a javac argument file, in quotes."""
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _package(classes: Path, archive: Path, fingerprint: str) -> None:
    manifest = (
        "Manifest-Version: 1.0\r\n"
        "Implementation-Title: lockstep-spark\r\n"
        f"Implementation-Version: {__version__}\r\n"
        f"Built-From: {fingerprint}\r\n\r\n"
    )
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(_entry("META-INF/MANIFEST.MF"), manifest)
        for path in sorted(path for path in classes.rglob("*") if path.is_file()):
            out.writestr(_entry(path.relative_to(classes).as_posix()), path.read_bytes())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _OLDEST_ZIP_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _built_from(archive: Path) -> str:
    try:
        with zipfile.ZipFile(archive) as content:
            manifest = content.read("META-INF/MANIFEST.MF").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return ""
    for line in manifest.splitlines():
        if line.startswith("Built-From: "):
            return line.removeprefix("Built-From: ")
    return ""


def _fingerprint(root: Path) -> str:
    """A hash of the Java sources, the resources, and what they are compiled against."""
    digest = hashlib.sha256()
    main = root / "jvm" / "src" / "main"
    parts = [__version__.encode(), str(jars.locked("spark")).encode(), b"\0".join(_names(ivy.pyspark_jars()))]
    for path in sorted(path for path in main.rglob("*") if path.is_file()):
        parts += [path.relative_to(main).as_posix().encode(), path.read_bytes()]
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:40]  # a line of a manifest has at most 72 bytes


def _names(folder: Path) -> list[bytes]:
    """Names with versions: the jars' content without reading a third of a gigabyte."""
    return sorted(path.name.encode() for path in folder.glob("*.jar"))
