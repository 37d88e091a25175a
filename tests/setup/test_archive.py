"""Class archives: used where they fit, made anew where they do not, and never needed."""

import subprocess
from pathlib import Path

import pytest

from lockstep.setup import archive, jars


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One jar for each kind; the archives lie in a folder of the test."""
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"classes")
    monkeypatch.setattr(jars, "classpath", lambda kind: [jar])
    monkeypatch.setattr(archive, "_folder", lambda: tmp_path / "archives")
    return tmp_path / "archives"


def rehearsal(monkeypatch: pytest.MonkeyPatch, *made: str, code: int = 0) -> None:
    """A rehearsal whose JVMs write these archives."""

    def run(command: list[str], env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        for kind in made:
            (Path(env["LOCKSTEP_RECORD_CLASSES"]) / f"{kind}.jsa").write_text(kind)
        return subprocess.CompletedProcess(command, code, "", "a word\nthe last word")

    monkeypatch.setattr(subprocess, "run", run)


def test_a_recorded_archive_is_used_until_a_jar_changes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive.outdated()
    assert archive.options("kafka") == []
    rehearsal(monkeypatch, "spark", "kafka")
    assert archive.record() == ""
    assert not archive.outdated()
    (option, *_) = archive.options("kafka")
    assert Path(option.removeprefix("-XX:SharedArchiveFile=")).read_text() == "kafka"
    (place.parent / "one.jar").write_bytes(b"other classes")
    assert archive.outdated()
    assert archive.options("kafka") == []
    assert archive.record() == ""
    assert len(list(place.iterdir())) == 2  # those of the old jar are gone


def test_a_failed_rehearsal_leaves_what_was_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal(monkeypatch, "spark", "kafka")
    archive.record()
    before = sorted(place.iterdir())
    rehearsal(monkeypatch, "spark", code=1)
    assert archive.record() == "the rehearsal ended with 1: the last word"
    rehearsal(monkeypatch, "spark")
    assert archive.record() == "the JVM wrote no archive for kafka"
    assert sorted(place.iterdir()) == before


def test_the_jvms_of_a_rehearsal_write_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_RECORD_CLASSES", str(tmp_path))
    assert archive.options("spark")[0] == f"-XX:ArchiveClassesAtExit={tmp_path}/spark.jsa"
