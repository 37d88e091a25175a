"""`lockstep sim` as a user meets it: exact replay, findings that can be read, speed, mistakes in its use."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.sim.replog.scenario import ReplicatedLog
from lockstep.sim.runner import run_seed
from lockstep.sim.scenario import SCENARIOS


def lockstep(*args: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockstep", "sim", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    "args",
    [("replog", "--seed", "152", "--bug", "stale-epoch")]
    + [(protocol, "--seed", "10") for protocol in SCENARIOS],
    ids=["a-finding", *SCENARIOS],
)
def test_a_seed_replays_byte_for_byte_in_every_process(args: tuple[str, ...], tmp_path: Path) -> None:
    told = []
    for hash_seed in ("1", "2", "31337"):
        trace = tmp_path / f"trace-{hash_seed}"
        done = lockstep(*args, "--trace", str(trace), hash_seed=hash_seed)
        told.append((done.returncode, done.stdout, trace.read_bytes()))
    assert told[0] == told[1] == told[2]
    assert len(told[0][2].splitlines()) > 100


def test_a_finding_names_seed_promise_faults_and_how_to_replay_it() -> None:
    done = lockstep("replog", "--seeds", "200", "--bug", "dedup-off-by-one", "--last", "20")
    assert done.returncode == 1
    assert "BROKEN   exactly once at" in done.stdout
    assert re.search(r"replay it with: lockstep sim replog --seed \d+ --bug dedup-off-by-one", done.stdout)
    assert "earlier events not shown" in done.stdout
    assert len(done.stdout.splitlines()) < 40


def test_a_finding_is_the_same_whether_one_or_two_processes_look_for_it() -> None:
    one = lockstep("replog", "--seeds", "40", "--bug", "dedup-off-by-one", "--keep-going")
    two = lockstep("replog", "--seeds", "40", "--bug", "dedup-off-by-one", "--keep-going", "--jobs", "2")
    assert one.stdout.partition("broken seeds")[2] == two.stdout.partition("broken seeds")[2] != ""


def test_a_sweep_says_how_much_it_ran_and_how_fast() -> None:
    done = lockstep("replog", "--seeds", "20", "--start-seed", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"replog: 20 seeds, [\d,]+ simulated events in .* events/s\): every promise was kept", done.stdout
    )


def test_one_core_simulates_at_least_20000_events_a_second() -> None:
    # Seconds of this process's own core, so that other work on the machine does not count.
    began, events = time.process_time(), 0
    for seed in range(40):
        events += run_seed(ReplicatedLog, seed).events
    speed = events / (time.process_time() - began)
    assert speed >= 20_000, f"{speed:,.0f} events/s"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nope",), "no protocol is called 'nope'"),
        (("replog", "--bug", "nope"), "has no bug called 'nope'"),
        (("replog", "--seeds", "0"), "Invalid value"),
        (("replog", "--jobs", "1000"), "Invalid value"),
    ],
)
def test_a_mistake_in_its_use_says_what_to_do(args: tuple[str, ...], message: str) -> None:
    done = lockstep(*args)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_that_cannot_be_written_says_so() -> None:
    done = lockstep("replog", "--seed", "1", "--trace", "/nonexistent/folder/trace")
    assert done.returncode == 1
    assert "cannot write the trace" in done.stderr
    assert "Traceback" not in done.stderr
