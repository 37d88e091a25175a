"""Two Spark standalone Masters with ZooKeeper recovery on our ensemble: killing our leader leaves the active
Master in office; killing the Master brings the standby, and the worker registers with it."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pyspark
import pytest

from lockstep import process
from lockstep.coordination.ensemble import Ensemble
from lockstep.ports import free_ports

pytestmark = pytest.mark.real
SPARK_HOME = Path(pyspark.__file__).parent


class Standalone:
    """Two Masters and a worker."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder = folder
        self.processes: dict[str, Popen[bytes]] = {}
        self.ports = dict(zip(("a", "b"), free_ports(2), strict=True))
        self.pages = dict(zip(("a", "b", "worker"), free_ports(3), strict=True))
        settings = {
            "spark.deploy.recoveryMode": "ZOOKEEPER",
            "spark.deploy.zookeeper.url": zookeeper,
            "spark.deploy.zookeeper.dir": "/spark",
        }
        flags = " ".join(f"-D{key}={value}" for key, value in settings.items())
        self.environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": flags,
            "SPARK_WORKER_DIR": str(folder / "work"),
        }

    def start(self, name: str, *arguments: str) -> None:
        kind = "worker.Worker" if name == "worker" else "master.Master"
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        log = self.folder / f"{name}.log"
        self.processes[name] = process.launch(command, log=log, env={**os.environ, **self.environment})

    def start_master(self, name: str) -> None:
        port, page = str(self.ports[name]), str(self.pages[name])
        self.start(name, "--host", "127.0.0.1", "--port", port, "--webui-port", page)

    def start_worker(self) -> None:
        masters = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        page = str(self.pages["worker"])
        self.start("worker", "--cores", "1", "--memory", "512m", "--webui-port", page, f"spark://{masters}")

    def state(self, name: str) -> tuple[str, int]:
        """(status, workers that are alive) as the Master's page tells."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.pages[name]}/json/", timeout=2) as page:
                told = json.load(page)
        except OSError:
            return "NONE", 0
        return told["status"], sum(worker["state"] == "ALIVE" for worker in told["workers"])

    def stop(self) -> None:
        for running in self.processes.values():
            process.kill(running)


@pytest.fixture
def spark(ensemble: Ensemble, tmp_path: Path) -> Iterator[Standalone]:
    # Masters talk to servers that will live: Curator gives up leadership when its own server goes away, from
    # whichever ensemble. That a survivor keeps its clients through the election is ours to show.
    leader = ensemble.wait_leader()
    followers = [str(member.client) for server, member in ensemble.members.items() if server != leader]
    cluster = Standalone(tmp_path, ",".join(followers))
    try:
        yield cluster
    finally:
        cluster.stop()


def test_masters_stay_and_change_as_they_should(
    ensemble: Ensemble, spark: Standalone, wait_until: Callable[..., None]
) -> None:
    spark.start_master("a")
    wait_until(lambda: spark.state("a")[0] == "ALIVE", "the first Master leads", seconds=60)
    spark.start_master("b")
    wait_until(lambda: spark.state("b")[0] == "STANDBY", "the second one waits", seconds=60)
    spark.start_worker()
    wait_until(lambda: spark.state("a") == ("ALIVE", 1), "the worker registers", seconds=60)

    leader = ensemble.wait_leader()
    ensemble.kill(leader)
    assert ensemble.wait_leader() != leader
    ensemble.start_server(leader)
    ensemble.wait_serving(leader)
    assert spark.state("a") == ("ALIVE", 1), "our leader's death does not reach the Master"
    assert spark.state("b")[0] == "STANDBY"
    assert "Revoked leadership" not in (spark.folder / "a.log").read_text()

    process.kill(spark.processes["a"])
    wait_until(lambda: spark.state("b") == ("ALIVE", 1), "the standby takes over with the worker", seconds=60)
