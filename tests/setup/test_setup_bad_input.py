"""What a user does wrong or a machine lacks ends in one line, what to do, and a telling exit code."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from setup_fakes import Command, MavenRepository, fake_jdk, without_root_powers

from lockstep.cli import COMMANDS
from lockstep.cli.setup import setup
from lockstep.errors import LockstepError
from lockstep.setup import build, jars


def one_line(answer: "subprocess.CompletedProcess[str]", code: int) -> str:
    """The error line of an answer that failed as it should."""
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    errors = [line for line in answer.stderr.splitlines() if line.startswith("lockstep: ")]
    assert len(errors) == 1, answer.stderr
    hint = answer.stderr.splitlines()[-1]
    assert hint.startswith("  ")
    assert hint.strip()
    return errors[0]


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["setup", "--no-such-flag"],
        ["setup", "--set"],
        ["setup", "--set", "flink"],
        ["setup", "left", "over"],
        ["--no-such-flag", "setup"],
        ["bench"],
        ["bench", "no-such-experiment"],
        ["doctor", "--kafka-option", "nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_exit_code_2(lockstep: Command, words: list[str]) -> None:
    one_line(lockstep(*words), 2)


@pytest.mark.parametrize(
    "words", [["--debug", "setup", "--set", "flink"], ["setup", "--set", "flink", "--debug"]]
)
def test_debug_shows_the_stack_trace_wherever_it_stands(lockstep: Command, words: list[str]) -> None:
    answer = lockstep(*words)
    assert answer.returncode == 2
    assert "Traceback" in answer.stderr
    assert "lockstep: no set of jars is called 'flink'" in answer.stderr


def test_without_words_and_with_help_every_command_is_listed(lockstep: Command) -> None:
    for words in ([], ["--help"]):
        answer = lockstep(*words)
        assert answer.returncode == 0
        for name in COMMANDS:
            assert f" {name} " in answer.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(lockstep: Command, name: str) -> None:
    answer = lockstep(name, "--help")
    assert answer.returncode == 0, answer.stderr
    assert f"lockstep {name}" in answer.stdout


def test_the_version_is_printed(lockstep: Command) -> None:
    answer = lockstep("--version")
    assert answer.returncode == 0
    assert answer.stdout.startswith("lockstep 0.")


@pytest.mark.usefixtures("own_home", "repository")
def test_a_missing_java(lockstep: Command, tmp_path: Path) -> None:
    error = one_line(lockstep("setup", env={"JAVA_HOME": str(tmp_path / "nothing")}), 1)
    assert "no working bin/java" in error


@pytest.mark.usefixtures("own_home", "repository")
def test_a_java_that_is_too_old(lockstep: Command, tmp_path: Path) -> None:
    error = one_line(lockstep("setup", env={"JAVA_HOME": str(fake_jdk(tmp_path / "old", "11.0.1"))}), 1)
    assert "Java 11 is too old" in error


def test_a_runtime_without_javac_is_told_before_anything_is_fetched(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that it holds whether or not this checkout's Java is already compiled."""
    monkeypatch.setattr(build, "JAR", tmp_path / "lockstep-spark.jar")
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(tmp_path / "jre", "17.0.1", compiler=False)))
    with pytest.raises(LockstepError, match="without the compiler javac") as caught:
        setup()
    assert caught.value.exit_code == 1
    assert not own_home.exists()


@pytest.mark.usefixtures("repository")
def test_a_home_that_is_read_only(lockstep: Command, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    env = {"LOCKSTEP_HOME": str(tmp_path / "locked" / "home")}
    error = one_line(lockstep("setup", env=env, before=without_root_powers), 1)
    assert "permission denied" in error
    assert str(tmp_path / "locked" / "home") in error


def _files_of_at_most(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.parametrize("size", [0, 60_000], ids=["ours", "the download"])
def test_a_disk_that_takes_no_more(
    lockstep: Command, own_home: Path, repository: MavenRepository, size: int
) -> None:
    """The kernel's limit on file sizes stands for a full disk: every write past it fails."""
    for module in jars.SETS["spark"]:
        repository.add(module.name, module.revision, "x" * 100_000, organisation=module.organisation)
    error = one_line(lockstep("setup", "--set", "spark", before=_files_of_at_most(size)), 1)
    assert "file too large" in error
    assert str(own_home) in error
    assert not (own_home / "jars" / "spark").exists()


def test_standard_output_that_takes_no_more() -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "lockstep", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert "no space left on device" in one_line(answer, 1)
