"""The one place that builds a SparkSession, in this process (`local`) or as a driver of a cluster.

Each setting below is there because a site needs it to be fast, or equal to the other sites:

- one attempt per task, no speculation: a second attempt would write outputs beside the first;
- no adaptive execution: the number of a reducer is part of an output's identity;
- RocksDB with checkpoint format 2: format 1 reuses file names, so a checkpoint could not be copied while live;
- checkpoint files are written without child processes, of which a batch boundary waits for several;
- no batches without data: they come and go with the clock, and a sealed batch would lose its number;
- progress is written in step with the batches, also where Spark would put it off (stateless real-time queries);
- a listener keeps why tasks failed: the failure that ends a real-time query may only be a consequence of another;
- temporary files go to the site's folder, and what a killed predecessor left there is removed;
- while Java's thorough compiler is busy, which on few cores is most of the first minute, code is compiled without
  the counters that this compiler wants: they make it slower;
- the allow-list of Real-Time Mode is off, since it knows only Spark's own sinks: our guard takes its place.

On a cluster the driver sends our jar and Kafka's to the executors, takes only as many cores as it has slots (else
the first site would take them all), and starts nothing before it has them: real time fails with fewer.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from lockstep.errors import LockstepError, UsageError
from lockstep.setup import archive, jars
from lockstep.setup import build as jar

SHUFFLE_PARTITIONS = 2
"""Few: in real time each is a task that runs all the time, and the machine is shared with other sites."""

_FIXED = {
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.checkpointFileManagerClass": "io.lockstep.checkpoint.LocalFiles",
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
}
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "500",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.cleaner.referenceTracking.blocking": "false",
}
_LISTENER = "io.lockstep.TaskFailures"
LOOPBACK = "127.0.0.1"
_ON_LOOPBACK = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
_JAVA_OPTIONS = (
    "-XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:Tier3DelayOn=0 -XX:Tier3DelayOff=0 -Xss512k "
    "-Djava.net.preferIPv4Stack=true"
)


@dataclass(frozen=True)
class SiteSettings:
    """What a site's session needs to know. `slots`: in real time every task of a query holds one all the time."""

    name: str
    folder: Path
    slots: int = 8
    memory: str = "1g"
    master: str = ""
    shuffle_partitions: int = SHUFFLE_PARTITIONS
    conf: Mapping[str, str] = field(default_factory=dict)


def build(site: SiteSettings) -> SparkSession:
    """The session of this process. A process has one JVM, so it can be only one site."""
    _refuse_overrides(site.conf)
    scratch = site.folder / "spark"
    temporary, local = empty_folders(scratch)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _on_loopback(site.master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    folders = [f"-Dderby.system.home={scratch}", f"-Djava.io.tmpdir={temporary}"]
    files = [str(path) for path in [jar.jar(), *jars.classpath("spark")]]
    classpath = os.pathsep.join(files)
    conf = {
        **_DEFAULTS,
        **(_ON_LOOPBACK if _on_loopback(site.master) else {}),
        "spark.driver.memory": site.memory,
        "spark.driver.extraClassPath": classpath,
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(site.shuffle_partitions),
        **({} if is_local(site.master) else _of_cluster(site, files)),
        **site.conf,
        "spark.driver.extraJavaOptions": driver_options(site, folders),
        "spark.extraListeners": with_ours(site.conf.get("spark.extraListeners", "")),
        **_FIXED,
    }
    builder = SparkSession.builder.appName(f"lockstep-{site.name}").master(
        site.master or f"local[{site.slots}]"
    )
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise LockstepError(
            f"Spark does not start: {first_line(error)}", hint="see the lines above it"
        ) from error
    spark.sparkContext.setLogLevel("WARN")
    return spark


def empty_folders(scratch: Path) -> tuple[Path, Path]:
    """For temporary files of the JVM and for blocks and stores of Spark, without what a killed site left."""
    temporary, local = scratch / "tmp", scratch / "local"
    for folder in (temporary, local):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return temporary, local


def with_ours(listeners: str) -> str:
    """The user's own listeners, and the one that keeps why tasks failed."""
    return ",".join([*filter(None, listeners.split(",")), _LISTENER])


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own JVM, where their progress can be seen."""
    return not master or re.fullmatch(r"local(\[.*\])?", master) is not None


def slots_needed(shards: int, shuffle_partitions: int = SHUFFLE_PARTITIONS) -> int:
    """How many task slots a real-time query holds: a reader for each shard, and one stage of reducers."""
    return shards + shuffle_partitions


def driver_options(site: SiteSettings, folders: Sequence[str]) -> str:
    """For the driver's JVM. Ours come first: Java takes the last word, which is the user's."""
    ours = f"{_JAVA_OPTIONS} {_quoted([*archive.options('spark'), *folders])}"
    return f"{ours} {site.conf.get('spark.driver.extraJavaOptions', '')}".strip()


def _of_cluster(site: SiteSettings, files: Sequence[str]) -> dict[str, str]:
    settings = {
        "spark.jars": ",".join(files),
        "spark.cores.max": str(site.slots),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.executor.memory": site.memory,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    }
    if path := os.environ.get("PYTHONPATH"):  # the pipeline's neighbours, for Python workers
        settings["spark.executorEnv.PYTHONPATH"] = path
    return settings


def _on_loopback(master: str) -> bool:
    """On other machines nobody reaches a driver that listens on loopback: there Spark chooses the address."""
    return is_local(master) or master.startswith(
        (f"spark://{LOOPBACK}:", "spark://localhost:", "local-cluster")
    )


def _quoted(options: Sequence[str]) -> str:
    return " ".join(f'"{option}"' for option in options)


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _refuse_overrides(conf: Mapping[str, str]) -> None:
    for name, value in conf.items():
        if not name.startswith("spark."):
            raise UsageError(f"{name} is no setting of Spark", hint="they begin with spark.")
        if name in _FIXED and value != _FIXED[name]:
            raise UsageError(
                f"{name}={value} would let sites differ: it has to be {_FIXED[name]}",
                hint="remove the setting",
            )
