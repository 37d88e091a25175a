"""Finding a Java: `$JAVA_HOME` is taken or refused with the reason; else the first that is good enough."""

from pathlib import Path

import pytest
from setup_fakes import fake_jdk

from lockstep.errors import LockstepError
from lockstep.setup import java


@pytest.fixture(autouse=True)
def no_java_but_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where a test may install Javas; nothing else on this machine is found."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "USUAL_FOLDERS", (str(tmp_path / "jvm"),))
    (tmp_path / "jvm").mkdir()
    return tmp_path / "jvm"


def refusal(*, compiler: bool = False) -> LockstepError:
    with pytest.raises(LockstepError) as caught:
        java.find(compiler=compiler)
    assert caught.value.exit_code == 1
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("text", "release"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("11.0.2", 11), ("25-ea", 25)]
)
@pytest.mark.parametrize("release_file", [True, False])
def test_a_version_is_read_from_the_release_file_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, release: int, release_file: bool
) -> None:
    home = fake_jdk(tmp_path / "a", text, release_file=release_file)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "OLDEST", 8)
    assert java.find().version == release


def test_no_java_at_all_says_what_to_install() -> None:
    error = refusal()
    assert "no Java" in error.message
    assert "JDK 17" in error.hint


def test_java_home_wins_over_everything(
    no_java_but_ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_jdk(no_java_but_ours / "usual", "21")
    chosen = fake_jdk(tmp_path / "chosen", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert java.find(compiler=True) == java.Java(chosen, chosen / "bin/java", chosen / "bin/javac", 17)


def test_a_bad_java_home_is_refused_and_not_passed_over(
    no_java_but_ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_jdk(no_java_but_ours / "usual", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    error = refusal()
    assert "JAVA_HOME" in error.message
    assert "no working bin/java" in error.message


def test_a_java_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(tmp_path / "old", "11.0.2")))
    assert "Java 11 is too old" in refusal().message


def test_a_runtime_will_do_unless_something_has_to_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(tmp_path / "jre", "17", compiler=False)))
    assert java.find().javac is None
    error = refusal(compiler=True)
    assert "without the compiler javac" in error.message
    assert "full JDK" in error.hint


def test_the_first_that_is_good_enough_wins_over_one_that_is_not(
    no_java_but_ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_jdk(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    fake_jdk(no_java_but_ours / "a-jre", "17", compiler=False)
    jdk = fake_jdk(no_java_but_ours / "b-jdk", "21.0.1")
    assert java.find(compiler=True).home == jdk
    assert java.find().home == no_java_but_ours / "a-jre"


def test_when_none_is_good_enough_the_one_on_the_path_is_named(
    no_java_but_ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_jdk(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    fake_jdk(no_java_but_ours / "older", "1.7.0")
    assert str(on_path) in refusal().message


def test_a_java_that_does_not_start_is_no_java(no_java_but_ours: Path) -> None:
    broken = fake_jdk(no_java_but_ours / "broken", "17", release_file=False)
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert "no Java" in refusal().message
