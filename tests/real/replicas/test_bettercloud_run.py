"""BetterCloud on two sites over real Kafka, something killed on the way: the oracle's alerts, each once."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import lockstep
from lockstep import process
from lockstep.bench.bettercloud_sides import Arrivals, LockstepSide, example_folder, example_module

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

oracle = example_module("oracle")
agreed = example_module("agreed")
MERGED, CONTROLS = "customer-events+control-events!", "control-events"
SECONDS = 6


def wait(condition: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def inputs(folder: Path, bootstrap_servers: str, merged: str = MERGED, controls: str = CONTROLS) -> int:
    """How many inputs the order admits so far; with two shards a control event counts twice."""
    return sum(map(len, agreed.of_run(folder, bootstrap_servers, merged, controls).values()))


def test_the_example_runs_as_it_is_and_a_killed_site_is_not_noticed(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    """Real time, LiveRobin, two shards, two stages."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [NewTopic("customer-events", 2), NewTopic("control-events", 1)]
    for future in admin.create_topics(topics).values():
        future.result(20)
    command = [sys.executable, str(example_folder() / "feed.py"), "--rate=300", f"--seconds={SECONDS}"]
    command += [f"--bootstrap-servers={bootstrap_servers}", "--controls-per-second=30"]
    file = example_folder() / "pipeline.py"
    with lockstep.run(file, name="bettercloud", bootstrap_servers=bootstrap_servers, folder=tmp_path) as job:
        consumer = job.consumer()
        arrivals = Arrivals(lambda timeout: [record.value or b"" for record in consumer.records(timeout)])
        try:
            feed = process.launch(command, log=tmp_path / "feed.log")
            wait(lambda: len(arrivals.rows) > 20)
            job.kill("site-1")
            assert feed.wait(60) == 0
            wait(lambda: inputs(tmp_path, bootstrap_servers) == 300 * SECONDS + 2 * 30 * SECONDS)
            expected = oracle.replay(agreed.of_run(tmp_path, bootstrap_servers, MERGED, CONTROLS))
            wait(lambda: len(arrivals.rows) >= len(expected))
        finally:
            arrivals.close()
    assert {alert.shard for alert in expected} == {0, 1}
    found = [oracle.alert_of(value) for _, value in arrivals.rows]
    assert oracle.compare(expected, found) is None


def test_in_micro_batches_a_killed_leader_changes_no_alert(bootstrap_servers: str, tmp_path: Path) -> None:
    """KaZoo, one stage."""
    side = LockstepSide(
        "bettercloud-kazoo",
        bootstrap_servers,
        tmp_path,
        "microbatch",
        order="kazoo",
        victim="leader",
        batch_ms=500,
    )
    with side:
        side.start_feed(300, SECONDS, seed=3, controls_per_second=30)
        wait(lambda: len(side.arrivals.rows) > 20)
        assert side.kill().startswith("leader-")
        assert side.finish_feed() == (300 + 30) * SECONDS

        folder, merged, controls = side.job.folder, side.merged, side.controls
        wait(lambda: inputs(folder, bootstrap_servers, merged, controls) == (300 + 30) * SECONDS)
        expected = oracle.replay(agreed.of_run(folder, bootstrap_servers, merged, controls))
        assert side.arrivals.wait(len(expected), 60, side.check)
    found = [oracle.alert_of(value) for _, value in side.arrivals.rows]
    assert oracle.compare(expected, found, in_order=False) is None
