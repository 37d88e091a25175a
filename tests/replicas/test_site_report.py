"""What a site says of itself while it catches up, and where nobody can say how far it is."""

import time
from pathlib import Path
from types import SimpleNamespace

from lockstep.replicas.layout import RunFolder, write_json
from lockstep.replicas.settings import RunSettings
from lockstep.replicas.site import Neighbours, Reporter


def test_it_runs_once_it_has_caught_up_and_stays_so(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    reporter = Reporter(run, "site-1")
    seen = SimpleNamespace(batch=3, phase_ms=10, positions={"events": {0: 100, 1: 50}}, lag=90_000)
    reporter.watch(lambda: seen)
    reporter.reads(0.0)
    assert run.site("site-1").status()["state"] == "catching up"
    reporter.report()
    assert run.site("site-1").status()["state"] == "catching up"
    seen.lag = 0
    reporter.report()
    assert run.site("site-1").status()["state"] == "running"
    seen.lag = 90_000
    reporter.report()
    status = run.site("site-1").status()
    assert (status["state"], status["lag"]) == ("running", 90_000)


def test_on_a_cluster_it_runs_at_once_and_its_batches_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    commits = run.site("site-1").checkpoint / "commits"
    commits.mkdir(parents=True)
    (commits / "7").touch()
    reporter = Reporter(run, "site-1")
    reporter.reads(0.0)
    status = run.site("site-1").status()
    assert (status["state"], status["lag"], status["batch_id"]) == ("running", None, 7)
    assert abs(status["boundary"] - time.time()) < 5


def test_boundaries_count_only_if_all_sites_run_and_their_statuses_are_fresh(tmp_path: Path) -> None:
    run, now = RunFolder(tmp_path), time.time()
    settings = RunSettings(name="a", pipeline_file="p.py", bootstrap_servers="b", sites=2)

    def say(site: str, **changes: object) -> None:
        status = {"state": "running", "boundary": now - 1, "updated": now, "boundary_ms": 300}
        run.site(site).path.mkdir(parents=True, exist_ok=True)
        write_json(run.site(site).status_file, {**status, **changes})

    neighbours = Neighbours(run, settings, "site-2")
    say("site-1", boundary_ms=None)
    say("site-2")
    assert neighbours.look() == ({"site-1": (now - 1) * 1000, "site-2": (now - 1) * 1000}, 300)
    for away in ({"state": "catching up"}, {"updated": now - 60}, {"boundary": None}):
        say("site-1", **away)
        assert neighbours.look() == ({}, 300)
    assert neighbours.wait_seconds(8000, 0) == 4.0, "nobody's boundary is known: half a batch after the first"
