"""Curator 5.9 (from PySpark's jars), unchanged, on our ensemble."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from lockstep.coordination.ensemble import Ensemble
from lockstep.setup import java

pytestmark = pytest.mark.real
JARS = Path(pyspark.__file__).parent / "jars" / "*"
PROBE = Path(__file__).with_name("CuratorProbe.java")


def test_curator_on_a_survivor_never_sees_that_the_leader_died(
    ensemble: Ensemble, wait_until: Callable[..., None]
) -> None:
    leader = ensemble.wait_leader()
    survivor = next(server for server in ensemble.running if server != leader)
    probe = subprocess.Popen(
        [str(java.find().java), "-cp", str(JARS), str(PROBE), str(ensemble.members[survivor].client)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert probe.stdin is not None and probe.stdout is not None
        assert any(line.strip() == "READY" for line in iter(probe.stdout.readline, ""))
        received = int(ensemble.figures(survivor)["zk_packets_received"])
        ensemble.kill(leader)
        assert ensemble.wait_leader() != leader
        wait_until(
            lambda: int(ensemble.figures(survivor).get("zk_packets_received", 0)) > received + 100,
            "the probe goes on counting",
            seconds=60,
        )
        shown, _ = probe.communicate("end\n", timeout=60)
    finally:
        probe.kill()
    assert "STATES [CONNECTED]" in shown, shown
    assert "LEADERSHIP KEPT" in shown, shown
    counted = next(line.split() for line in shown.splitlines() if line.startswith("COUNTED"))
    assert counted[1] == counted[3], "every acknowledged write is there, and none twice"
