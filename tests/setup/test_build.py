"""Our own Java becomes one jar: rebuilt only when something changed, and replaced only by a good one."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from lockstep import home
from lockstep.errors import LockstepError
from lockstep.setup import build, java

SOURCE = """package io.example;
public final class Greeting {
    public static void main(String[] words) { System.out.print("%s"); }
}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one class and one service file; its jar lies in a folder of the test."""
    root = tmp_path / "check out"
    source = root / "jvm/src/main/java/io/example/Greeting.java"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE % "hello")
    services = root / "jvm/src/main/resources/META-INF/services"
    services.mkdir(parents=True)
    (services / "org.example.Service").write_text("io.example.Greeting\n")
    monkeypatch.setenv("LOCKSTEP_HOME", str(home.home()))  # the jars to compile against stay where they are
    monkeypatch.setattr(home, "checkout", lambda: root)
    monkeypatch.setattr(build, "JAR", tmp_path / "made" / "lockstep-spark.jar")
    return root


def said() -> str:
    command = [java.find().java, "-cp", build.jar(), "io.example.Greeting"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.usefixtures("checkout")
def test_the_jar_holds_the_classes_and_the_services() -> None:
    assert build.build() is True
    assert said() == "hello"
    with zipfile.ZipFile(build.jar()) as jar:
        assert jar.read("META-INF/services/org.example.Service") == b"io.example.Greeting\n"
    assert [path.name for path in build.JAR.parent.iterdir()] == [build.JAR.name]


@pytest.mark.usefixtures("checkout")
def test_nothing_is_compiled_when_nothing_changed() -> None:
    build.build()
    before = build.JAR.stat().st_ino
    assert build.build() is False
    assert build.JAR.stat().st_ino == before


def test_a_changed_source_or_resource_is_compiled_again(checkout: Path) -> None:
    build.build()
    (checkout / "jvm/src/main/java/io/example/Greeting.java").write_text(SOURCE % "good evening")
    assert build.outdated()
    assert build.build() is True
    assert said() == "good evening"
    (checkout / "jvm/src/main/resources/more.txt").write_text("more")
    assert build.build() is True


@pytest.mark.usefixtures("checkout")
def test_the_same_inputs_give_the_same_bytes() -> None:
    build.build()
    first = build.jar().read_bytes()
    build.JAR.unlink()
    build.build()
    assert build.jar().read_bytes() == first


def test_a_source_that_does_not_compile_keeps_the_old_jar_and_shows_javacs_words(checkout: Path) -> None:
    build.build()
    (checkout / "jvm/src/main/java/io/example/Greeting.java").write_text("class Greeting { int x = ; }")
    with pytest.raises(LockstepError, match="illegal start of expression"):
        build.build()
    assert said() == "hello"
    assert [path.name for path in build.JAR.parent.iterdir()] == [build.JAR.name]


@pytest.mark.usefixtures("checkout")
def test_a_jar_that_is_cut_off_is_built_again() -> None:
    build.build()
    build.JAR.write_bytes(build.JAR.read_bytes()[:100])
    assert build.outdated()
    assert build.build() is True
    assert said() == "hello"


@pytest.mark.usefixtures("checkout")
def test_a_missing_jar_says_what_to_run() -> None:
    with pytest.raises(LockstepError) as caught:
        build.jar()
    assert caught.value.hint == "run: lockstep setup"


@pytest.mark.usefixtures("checkout")
def test_an_installed_wheel_never_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    build.build()
    monkeypatch.setattr(home, "checkout", lambda: None)
    assert build.outdated() == ""
    build.JAR.unlink()
    with pytest.raises(LockstepError, match="this installation lacks"):
        build.build()
