"""What a site's session finds before Spark starts."""

from pathlib import Path
from typing import Any

from lockstep.spark import session
from lockstep.spark.session import SiteSettings, driver_options


def test_what_a_killed_site_left_is_gone_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    for folder in session.empty_folders(tmp_path):
        (folder / "left").write_text("by a killed site")
    assert [list(folder.iterdir()) for folder in session.empty_folders(tmp_path)] == [[], []]
    assert (tmp_path / "warehouse").is_dir()


def test_a_users_listeners_stay_beside_ours() -> None:
    assert session.with_ours("") == "io.lockstep.TaskFailures"
    assert session.with_ours("com.example.A,com.example.B") == (
        "com.example.A,com.example.B,io.lockstep.TaskFailures"
    )


def options(cores: int, **more: Any) -> list[str]:
    return driver_options(SiteSettings("a", Path("/somewhere"), **more), [], cores=cores).split()


def test_sites_that_share_few_cores_compile_quickly() -> None:
    quickly = "-XX:TieredStopAtLevel=1"
    assert quickly in options(2)
    assert quickly in options(4, neighbours=2)
    assert quickly not in options(3)
    assert quickly not in options(5, neighbours=2)
    assert quickly not in options(2, master="spark://elsewhere:7077"), "its executors have cores of their own"


def test_the_users_java_options_have_the_last_word() -> None:
    wanted = "-XX:TieredStopAtLevel=4"
    found = options(2, conf={"spark.driver.extraJavaOptions": wanted})
    assert found[-1] == wanted
    assert "-XX:+UseG1GC" in found
