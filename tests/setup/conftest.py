"""A home of its own for a test, a repository to fetch from, and the `lockstep` command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from setup_fakes import Command, MavenRepository


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    monkeypatch.setenv("LOCKSTEP_HOME", str(place))
    return place


@pytest.fixture
def lockstep() -> Command:
    """Run the command as a user does; the environment is the test's, changed by `env`."""

    def run(
        *words: str,
        env: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
        timeout: float = 60,
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "lockstep", *words],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            preexec_fn=before,
        )

    return run


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MavenRepository:
    """The repository that set-up fetches from in this test."""
    made = MavenRepository(tmp_path / "maven")
    monkeypatch.setenv("LOCKSTEP_MAVEN_MIRROR", made.root.as_uri())
    return made
