"""An ordinary Spark query with foreachBatch on a run's clean topic: every output once, through kills of both."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_sites import PIPELINES, Scene, wait

import lockstep
from lockstep import process

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "clean_topic" / "foreach_batch.py"
DOCS = Path(__file__).parents[3] / "docs" / "replicas.md"
HALF = 400


def kept(folder: Path) -> list[str]:
    """The values in batches that were written to their end."""
    found = []
    for batch in folder.glob("outputs/batch=*"):
        if (batch / "_SUCCESS").exists():
            for file in batch.glob("part-*.json"):
                found += [json.loads(line)["value"] for line in file.read_text().splitlines()]
    return found


def test_every_output_is_kept_once_though_a_site_and_the_query_are_killed(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    scene = Scene(bootstrap_servers, tmp_path)
    clean, folder = f"{scene.prefix}-clean", tmp_path / "kept"
    command = [sys.executable, str(EXAMPLE), scene.bootstrap, clean, str(folder)]
    queries: list[subprocess.Popen[bytes]] = []

    def query() -> None:
        queries.append(process.launch(command, log=tmp_path / "query.log"))

    job = lockstep.run(
        PIPELINES / "counts.py",
        name=f"{scene.prefix}-batches",
        folder=scene.folder / "batches",
        bootstrap_servers=scene.bootstrap,
        sites=1,  # when it comes back it writes its last batch again
        batch_ms=6000,
        clean=clean,
        wait=False,
    )
    try:
        with job:
            wait(lambda: job.status()["others"]["egress"].get("state") == "running")
            query()
            job.wait_running()
            scene.write(HALF)
            wait(lambda: len(kept(folder)) > 0)
            job.kill("site-1")
            scene.write(HALF // 2)
            process.kill(queries[0])
            scene.write(HALF // 2)
            query()
            wait(lambda: len(kept(folder)) >= scene.written)
            assert sorted(map(json.loads, kept(folder)), key=str) == sorted(scene.due.values(), key=str)
    finally:
        for one in queries:
            process.kill(one)


def test_the_docs_show_the_code_that_runs() -> None:
    code = EXAMPLE.read_text()
    shown = DOCS.read_text().partition("```python\noutputs = (")[2].partition("```")[0]
    assert shown.count("\n") > 10
    assert "outputs = (" + shown.rstrip() in code
