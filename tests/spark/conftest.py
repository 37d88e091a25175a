"""Java's half of the tests that hold Java and Python to the same answers."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from lockstep.setup import build, ivy, jars, java

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"


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


@pytest.fixture
def replay(java_runner: list[str], tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Let Java replay stories that a Python machine told."""

    def run(told: Iterable[dict[str, Any]]) -> "subprocess.CompletedProcess[str]":
        stories = tmp_path / "stories.jsonl"
        stories.write_text("".join(json.dumps(story) + "\n" for story in told))
        return subprocess.run([*java_runner, str(VECTORS), str(stories)], capture_output=True, text=True)

    return run
