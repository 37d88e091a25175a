"""Declaring and loading a pipeline: mistakes are told in one line."""

from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.errors import UsageError
from lockstep.spark import session
from lockstep.spark.pipeline import load, pipeline

GOOD = """
import lockstep

@lockstep.pipeline(inputs=["payments"], output="alerts", key="customer", options={"kafka.linger.ms": 1})
def alerts(payments):
    return payments
"""


def write(folder: Path, content: str) -> Path:
    file = folder / "pipe.py"
    file.write_text(content)
    return file


def test_a_file_with_one_pipeline_is_loaded(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, GOOD))
    assert isinstance(loaded, lockstep.Pipeline)
    assert (loaded.name, loaded.inputs, loaded.output, loaded.key) == (
        "alerts",
        ("payments",),
        "alerts",
        "customer",
    )
    assert loaded.kafka_options == {"linger.ms": "1"}
    assert loaded("a DataFrame") == "a DataFrame"


def test_one_of_several_pipelines_is_picked_by_name(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD + GOOD.replace("def alerts", "def copies"))
    assert load(f"{file}:copies").name == "copies"
    with pytest.raises(UsageError, match="declares 2 pipelines"):
        load(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1", "declares no pipeline"),
        ("def broken(:\n", "line 1: invalid syntax"),
        ("import no_such_module_anywhere", "No module named"),
        ("1 / 0", "ZeroDivisionError"),
        (GOOD.replace("(payments)", "()"), "has to take 1 DataFrame,"),
        (GOOD.replace('inputs=["payments"]', 'inputs="payments"'), "list of input topics"),
        (GOOD.replace('"alerts"', '"no/topic"'), "cannot be the name of a Kafka topic"),
        (GOOD.replace('output="alerts"', 'output="payments"'), "both input and output"),
        (GOOD.replace('inputs=["payments"]', 'inputs=["a", "a"]'), "named twice"),
        (GOOD.replace("kafka.linger.ms", "linger.ms"), "unknown option 'linger.ms'"),
    ],
)
def test_a_mistake_in_the_file_is_a_usage_error(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(write(tmp_path, content))


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        load(tmp_path / "absent.py")


def test_the_fingerprint_changes_with_the_declaration_and_the_code(tmp_path: Path) -> None:
    prints = set()
    for n, content in enumerate(
        [
            GOOD,
            GOOD,
            GOOD.replace('"customer"', '"other"'),
            GOOD.replace("return payments", "return payments.x"),
        ]
    ):
        (tmp_path / str(n)).mkdir()
        prints.add(load(write(tmp_path / str(n), content)).fingerprint)
    assert len(prints) == 3


def test_settings_that_would_let_sites_differ_are_refused(tmp_path: Path) -> None:
    for conf in ({"spark.task.maxFailures": "4"}, {"linger.ms": "1"}):
        with pytest.raises(UsageError):
            session.build(session.SiteSettings("s", tmp_path, conf=conf))


def test_a_static_run_needs_every_input() -> None:
    @pipeline(inputs=["a", "b"], output="c")
    def both(a: Any, b: Any) -> Any:
        return a

    with pytest.raises(UsageError, match="no DataFrame for input 'b'"):
        both.on_static(a=None)
    with pytest.raises(UsageError, match="'x' is no input"):
        both.on_static({"a": None, "b": None, "x": None})
