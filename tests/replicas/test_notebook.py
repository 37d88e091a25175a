"""A pipeline typed into a prompt becomes a file that declares the same pipeline."""

import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import UsageError
from lockstep.replicas.job import declared_in
from lockstep.replicas.notebook import write_module
from lockstep.spark.pipeline import Pipeline, load

CELL = """
import json as parser
from math import floor
import lockstep

TOPIC = "payments"
LIMITS = {"low": [1, 2]}

def shrink(value):
    return floor(value) + LIMITS["low"][0] if value < 10 else shrink(value - 1)

@lockstep.pipeline(inputs=[TOPIC], output="alerts", key="customer")
def alerts(payments):
    return parser.dumps([shrink(payments)])
"""


def typed(cell: str) -> dict[str, Any]:
    """As a notebook does: no file, but the cell's text is known to `linecache`."""
    name = "<cell-1>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), scope)
    return scope


def test_the_file_declares_the_same_pipeline(tmp_path: Path) -> None:
    pipeline: Pipeline = typed(CELL)["alerts"]
    write_module(pipeline, tmp_path / "pipeline.py")
    loaded = load(tmp_path / "pipeline.py")
    assert loaded.fingerprint == pipeline.fingerprint
    assert (loaded.inputs, loaded.output, loaded.key) == (("payments",), "alerts", "customer")
    assert loaded.function(12.5) == pipeline.function(12.5) == "[10]"


def test_what_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    cell = CELL.replace('TOPIC = "payments"', 'TOPIC = "payments"\nhandle = open("/dev/null")')
    pipeline = typed(cell.replace("shrink(payments)", "handle"))["alerts"]
    with pytest.raises(UsageError, match="uses handle"):
        write_module(pipeline, tmp_path / "pipeline.py")


def test_a_pipeline_in_a_file_is_named_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    path = tmp_path / "mine.py"
    path.write_text(CELL)
    file, (pipeline,) = declared_in(path)
    assert file == str(path)
    assert declared_in(pipeline)[0] == f"{path}:alerts"
    assert os.environ["PYTHONPATH"] == "before", "our own processes must not see the pipeline's neighbours"
    file, _ = declared_in(typed(CELL)["alerts"], tmp_path / "run")
    assert file == f"{tmp_path / 'run' / 'pipeline.py'}:alerts"


def test_a_udf_that_needs_a_session_to_be_declared_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from pyspark.sql.functions import udf\n@udf('string')\ndef f(x):\n    return x\n" + CELL)
    # In a process of its own: other tests of this one may have a Spark session.
    told = subprocess.run(
        [sys.executable, "-m", "lockstep", "run", str(path)], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 2
    assert "needs a Spark session" in told.stderr
    assert "udf(StringType())" in told.stderr
