"""`lockstep doctor`: every finding that is not good says what to do; something broken means exit code 1."""

import resource
import socket
from pathlib import Path

import pytest
from setup_fakes import Command, fake_jdk

from lockstep.setup import archive, build, doctor
from lockstep.setup.doctor import Finding, State


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    finding = findings[0]
    assert finding.state is State.GOOD or finding.todo, "a finding that is not good says what to do"
    return finding


def test_a_java_that_cannot_be_used_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(doctor.check_java()).state is State.GOOD
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(tmp_path / "old", "11")))
    assert only(doctor.check_java()).state is State.BROKEN


def test_a_java_that_looks_good_but_does_not_start_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_jdk(tmp_path / "new", "21")
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'library is missing' >&2\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    finding = only(doctor.check_java())
    assert finding.state is State.BROKEN
    assert "library is missing" in finding.found


@pytest.mark.parametrize(
    ("needed", "wanted", "state"),
    [(0, 0, State.GOOD), (0, 1 << 60, State.DOUBTFUL), (1 << 60, 1 << 60, State.BROKEN)],
)
def test_memory_and_disk_are_compared_with_what_is_needed(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, needed: int, wanted: int, state: State
) -> None:
    for name in ("MEMORY", "DISK"):
        monkeypatch.setattr(doctor, f"NEEDED_{name}", needed)
        monkeypatch.setattr(doctor, f"WANTED_{name}", wanted)
    assert only(doctor.check_memory()).state is state
    assert only(doctor.check_disk()).state is state


def test_a_home_that_cannot_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "file" / "home"))
    finding = only(doctor.check_disk())
    assert finding.state is State.BROKEN
    assert "LOCKSTEP_HOME" in finding.todo


def test_loopback_is_tried_with_a_real_connection() -> None:
    assert doctor.check_ports()[0].state is State.GOOD


def test_a_low_limit_of_open_files_is_doubtful() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        finding = only(doctor.check_open_files())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert finding.state is State.DOUBTFUL
    assert "512" in finding.found


def test_jars_that_are_not_there_are_broken(own_home: Path) -> None:
    findings = doctor.check_jars()
    assert [finding.subject for finding in findings] == ["spark jars", "kafka jars"]
    assert all(finding.state is State.BROKEN and "lockstep setup" in finding.todo for finding in findings)


def test_the_jars_of_this_checkout_are_read_and_good() -> None:
    assert all(finding.state is State.GOOD for finding in doctor.check_jars())


def test_own_java_that_is_not_compiled_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "JAR", tmp_path / "lockstep-spark.jar")
    assert only(doctor.check_own_java()).state is State.BROKEN


def test_classes_that_were_not_recorded_are_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(doctor.check_own_java()).state is State.GOOD
    monkeypatch.setattr(archive, "outdated", lambda: True)
    compiled, classes = doctor.check_own_java()
    assert (compiled.state, classes.state) == (State.GOOD, State.DOUBTFUL)
    assert "lockstep setup" in classes.todo


def test_a_kafka_that_does_not_answer_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "KAFKA_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        finding = only(doctor.check_kafka(f"127.0.0.1:{port}", {}))
    assert finding.state is State.BROKEN
    assert f"127.0.0.1:{port}" in finding.found


def test_an_unknown_kafka_option_is_named() -> None:
    finding = only(doctor.check_kafka("127.0.0.1:1", {"no.such.option": "1"}))
    assert finding.state is State.BROKEN
    assert "no.such.option" in finding.found


def test_something_broken_means_exit_code_1(lockstep: Command, own_home: Path) -> None:
    answer = lockstep("doctor")
    assert answer.returncode == 1
    assert "spark jars" in answer.stdout
    assert "-> run: lockstep setup" in answer.stdout
    assert "Traceback" not in answer.stderr


def test_a_malformed_kafka_option_is_a_usage_error(lockstep: Command) -> None:
    answer = lockstep("doctor", "--kafka-option", "security.protocol")
    assert answer.returncode == 2
    assert "NAME=VALUE" in answer.stderr
