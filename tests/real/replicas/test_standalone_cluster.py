"""A site on a Spark standalone cluster: PySpark's own master and worker, jars that the site sends."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
import pytest
from test_sites import PIPELINES, Scene, check, read, wait

import lockstep
from lockstep import process
from lockstep.ports import free_ports, is_free
from lockstep.replicas.job import Job
from lockstep.replicas.record import OutputRecord
from lockstep.setup import java

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
LOOPBACK = "127.0.0.1"
HALF = 400


@dataclass(frozen=True)
class Cluster:
    master: str
    worker: int
    """Its pid: executors are its children."""

    def executors(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.worker).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in child.cmdline():
                    found.append(child)
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    home = Path(pyspark.__file__).parent
    port, master_ui, worker_ui = free_ports(3)
    environment = {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java.find().home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    started = []

    def launch(role: str, *arguments: str) -> int:
        name = f"org.apache.spark.deploy.{role.lower()}.{role}"
        command = [str(home / "bin" / "spark-class"), name, "--host", LOOPBACK, *arguments]
        started.append(process.launch(command, log=folder / f"{role}.log", env=environment))
        return started[-1].pid

    try:
        launch("Master", "--port", str(port), "--webui-port", str(master_ui))
        wait(lambda: not is_free(port), 30)
        url = f"spark://{LOOPBACK}:{port}"
        room = ("--cores", "8", "--memory", "3g", "--work-dir", str(folder / "work"))
        worker = launch("Worker", "--webui-port", str(worker_ui), *room, url)
        wait(lambda: "Successfully registered" in (folder / "Worker.log").read_text(), 30)
        yield Cluster(url, worker)
    finally:
        for one in reversed(started):
            process.kill(one)


@pytest.fixture(scope="module")
def scene(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(bootstrap_servers, tmp_path_factory.mktemp("runs"))


def start(scene: Scene, cluster: Cluster) -> Job:
    return lockstep.run(
        PIPELINES / "counts.py",
        name=f"{scene.prefix}-cluster",
        folder=scene.folder / "cluster",
        bootstrap_servers=scene.bootstrap,
        sites=1,
        master=cluster.master,
        batch_ms=3000,
    )


def test_a_site_on_a_cluster_counts_right_and_goes_on_from_its_checkpoint_after_a_kill(
    scene: Scene, cluster: Cluster
) -> None:
    with start(scene, cluster) as job:
        assert job.engine()[0] == "realtime"
        site = job.status()["sites"]["site-1"]
        assert (site["state"], site["lag"]) == ("running", None), "the readers are elsewhere"
        first = {executor.pid for executor in cluster.executors()}
        assert first
        records: list[OutputRecord] = []
        with job.consumer() as consumer:
            scene.write(HALF)
            read(consumer, records, HALF)
            committed = job.folder / "sites" / "site-1" / "checkpoint" / "commits"
            wait(lambda: committed.is_dir() and any(file.name.isdigit() for file in committed.iterdir()), 30)
            wait(lambda: job.status()["sites"]["site-1"]["batch_id"] is not None)
            job.kill("site-1")
            scene.write(HALF)
            read(consumer, records, 2 * HALF)
            wait(lambda: job.status()["sites"]["site-1"]["state"] == "running")
        check(scene, records)
        assert job.status()["sites"]["site-1"]["starts"] == 2
        wait(lambda: not first & {executor.pid for executor in cluster.executors()}, 30)
    wait(lambda: not cluster.executors(), 30)  # a stopped run leaves none behind
