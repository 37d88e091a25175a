"""Java's half of the tests that hold Java and Python to the same answers."""

import os
import subprocess
from pathlib import Path

import pytest

from lockstep.setup import build, ivy, jars, java

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def java_runner(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs Java's half, compiled from jvm/src/test."""
    classes = tmp_path_factory.mktemp("classes")
    compiler = java.find(compiler=True)
    classpath = os.pathsep.join(map(str, [build.jar(), ivy.pyspark_jars() / "*", *jars.classpath("spark")]))
    sources = sorted(str(path) for path in (ROOT / "jvm" / "src" / "test").rglob("*.java"))
    subprocess.run(
        [str(compiler.javac), "-proc:none", "-d", str(classes), "-cp", classpath, *sources], check=True
    )
    runner = [str(compiler.java), "-Xmx128m", "-cp", os.pathsep.join([str(classes), classpath])]
    return [*runner, "io.lockstep.Vectors"]
