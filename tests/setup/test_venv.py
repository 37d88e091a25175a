"""The virtual environment: made from the lock file, and never taken for good when it was left half made.

A project of one file stands for ours, with a build backend of its own, so that nothing is downloaded.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.setup import venv

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "lockstep-spark"
version = "{version}"
[tool.hatch]
"""
BACKEND = '''
"""Builds an editable wheel with one console script, as slowly as the file `slow` says."""
import os, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    deadline = time.monotonic() + 60
    while os.path.exists("slow") and time.monotonic() < deadline:
        open("reached", "w").close()
        time.sleep(0.01)
    info = "lockstep_spark-1.dist-info/"
    name = "lockstep_spark-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("lockstep_stub.py", "def main(): print('hello')")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: lockstep-spark\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\nlockstep = lockstep_stub:main\\n")
        wheel.writestr(info + "RECORD", "")
    return name
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src/lockstep/setup").mkdir(parents=True)
    shutil.copy(venv.__file__, root / "src/lockstep/setup/venv.py")
    (root / "pyproject.toml").write_text(PYPROJECT.format(version="1"))
    (root / "backend.py").write_text(BACKEND)
    (root / "requirements.lock").write_text("")
    return root


def command(root: Path) -> list[str]:
    return [sys.executable, str(root / "src/lockstep/setup/venv.py")]


def make(root: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PIP_NO_INDEX": "1"}
    return subprocess.run(command(root), env=env, capture_output=True, text=True, timeout=120)


def made_at(root: Path) -> int:
    """Changes whenever the environment is made afresh."""
    return (root / ".venv" / "pyvenv.cfg").stat().st_mtime_ns


def test_it_is_made_once_and_then_left_alone(project: Path) -> None:
    assert make(project).returncode == 0
    assert subprocess.check_output([project / ".venv/bin/lockstep"], text=True) == "hello\n"
    before = made_at(project)
    started = time.monotonic()
    again = make(project)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert time.monotonic() - started < 2
    assert made_at(project) == before


def test_an_environment_whose_making_was_killed_is_made_afresh(project: Path) -> None:
    (project / "slow").touch()
    making = subprocess.Popen(command(project), stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (project / "reached").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(making.pid, signal.SIGKILL)
    making.wait()
    assert (project / ".venv/bin/python").exists()
    assert not (project / ".venv/.stamp").exists()
    before = made_at(project)
    (project / "slow").unlink()
    assert make(project).returncode == 0
    assert made_at(project) != before
    assert (project / ".venv/bin/lockstep").exists()


def test_a_package_that_cannot_be_had_is_an_error_and_the_environment_is_not_good(project: Path) -> None:
    (project / "requirements.lock").write_text("no-such-package==1.0 --hash=sha256:" + "0" * 64 + "\n")
    answer = make(project)
    assert answer.returncode == 1
    assert "no-such-package" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("  ")
    assert not (project / ".venv/.stamp").exists()


def test_the_fingerprint_depends_on_what_is_installed_and_not_on_the_settings_of_linters(
    project: Path,
) -> None:
    first = venv.fingerprint(project)
    with (project / "pyproject.toml").open("a") as file:
        file.write("[tool.ruff]\nline-length = 90\n")
    assert venv.fingerprint(project) == first
    (project / "pyproject.toml").write_text(PYPROJECT.format(version="2"))
    second = venv.fingerprint(project)
    (project / "requirements.lock").write_text("# another\n")
    assert len({first, second, venv.fingerprint(project)}) == 3
