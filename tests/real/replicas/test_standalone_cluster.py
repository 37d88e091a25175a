"""A site on a Spark standalone cluster: PySpark's own master and worker, jars that the site sends."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
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


def start(scene: Scene, cluster: Cluster, pipeline: str, **more: Any) -> Job:
    return lockstep.run(
        PIPELINES / f"{pipeline}.py",
        name=f"{scene.prefix}-{pipeline}",
        folder=scene.folder / pipeline,
        bootstrap_servers=scene.bootstrap,
        sites=1,
        master=cluster.master,
        **more,
    )


def test_a_site_on_a_cluster_counts_right_and_goes_on_from_its_checkpoint_after_a_kill(
    scene: Scene, cluster: Cluster
) -> None:
    with start(scene, cluster, "counts", batch_ms=3000) as job:
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


def test_python_code_of_a_pipeline_runs_on_the_executors_and_a_kill_repeats_no_micro_batch_otherwise(
    scene: Scene, cluster: Cluster
) -> None:
    topic = f"{scene.prefix}-whispers"
    scene.admin.create_topics([NewTopic(topic, 2)])[topic].result(20)
    producer = Producer({"bootstrap.servers": scene.bootstrap, "linger.ms": 1})

    def write(some: range) -> None:
        for number in some:
            producer.produce(topic, b"word-%d" % number, b"key-%d" % (number % 7))
        producer.flush()

    with start(scene, cluster, "shout", output_partitions=2) as job, job.consumer() as consumer:
        assert job.engine()[0] == "microbatch"
        records: list[OutputRecord] = []
        write(range(HALF))
        read(consumer, records, HALF)
        job.kill("site-1")
        write(range(HALF, 2 * HALF))
        read(consumer, records, 2 * HALF)
        assert sorted(r.value or b"" for r in records) == sorted(b"WORD-%d" % n for n in range(2 * HALF))
        assert job.status()["sites"]["site-1"]["starts"] == 2
    wait(lambda: not cluster.executors(), 30)
