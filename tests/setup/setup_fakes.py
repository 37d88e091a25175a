"""A small Maven repository, fake JDKs, and a process that even root cannot use to write everywhere."""

import ctypes
import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def fake_jdk(folder: Path, version: str, *, compiler: bool = True, release_file: bool = True) -> Path:
    """A folder that looks like a Java of this version; its programs answer only `-version`."""
    programs = ["java", "javac"] if compiler else ["java"]
    (folder / "bin").mkdir(parents=True)
    for name in programs:
        program = folder / "bin" / name
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
    if release_file:
        (folder / "release").write_text(f'IMPLEMENTOR="nobody"\nJAVA_VERSION="{version}"\n')
    return folder


class MavenRepository:
    """A Maven repository in a folder: small, on this machine, and as corrupt as a test wants it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, revision: str, content: str, *, organisation: str = "org.example") -> str:
        """Publish `organisation:name:revision`; return the SHA-256 of its jar."""
        jar = self.jar(name, revision, organisation=organisation)
        folder = jar.parent
        folder.mkdir(parents=True)
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr(zipfile.ZipInfo("content.txt"), content)
        pom = folder / f"{name}-{revision}.pom"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion>"
            f"<groupId>{organisation}</groupId>"
            f"<artifactId>{name}</artifactId><version>{revision}</version></project>"
        )
        return hashlib.sha256(jar.read_bytes()).hexdigest()

    def jar(self, name: str, revision: str, *, organisation: str = "org.example") -> Path:
        return self.root.joinpath(*organisation.split("."), name, revision, f"{name}-{revision}.jar")


def without_root_powers() -> None:
    """Run between fork and exec: what root may do beyond the permission bits is gone after the exec."""
    libc = ctypes.CDLL(None)
    for override in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, override, 0, 0, 0)  # PR_CAPBSET_DROP; refused to those who never had the power
