"""What a site's session finds before Spark starts."""

from pathlib import Path

from lockstep.spark import session


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


def test_the_users_java_options_stand_behind_ours() -> None:
    wanted = {"spark.driver.extraJavaOptions": "-Xss1m"}
    options = session.driver_options(session.SiteSettings("a", Path("/somewhere"), conf=wanted), []).split()
    assert options[-1] == "-Xss1m"
    assert "-XX:+UseG1GC" in options
