"""How one KRaft node of the embedded broker is laid out on disk and launched.

A node is broker and controller at once, unless the controller is a node of its own. It listens on loopback only.
The settings are those of a small machine: few partitions in Kafka's own topics, small buffers, a small heap, quick
failover.
"""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.log.security import Security
from lockstep.setup import archive, jars, java

LOOPBACK = "127.0.0.1"

# The serial collector: its threads do not compete with what is measured beside it. Both compilers: with C1 alone a
# node is up 0.7 s sooner, and then needs a quarter more of a core for the same load.
JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_FORMAT_SECONDS = 60.0


@dataclass(frozen=True)
class Node:
    """One node: where its files are and where it listens."""

    number: int
    folder: Path
    port: int
    controller_port: int
    is_broker: bool = True
    is_controller: bool = True

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def controller_address(self) -> str:
        return f"{LOOPBACK}:{self.controller_port}"


def command(node: Node, *, heap_mb: int) -> list[str]:
    return [*_java(heap_mb), "kafka.Kafka", str(node.properties)]


def configure(nodes: Sequence[Node], extra: Mapping[str, str], security: Security | None = None) -> None:
    """Write every node's `server.properties`.

    `extra` wins over our settings; `{}` in its value stands for ours, so that `listeners` can get one more.
    """
    for node in nodes:
        node.folder.mkdir(parents=True, exist_ok=True)
        ours = _settings(node, nodes)
        if security is not None:
            ours |= security.broker_settings(node.address, node.controller_address)
        more = {name: value.replace("{}", ours.get(name, "")) for name, value in extra.items()}
        _write_properties(node.properties, {**ours, **more})


def format_storage(nodes: Sequence[Node]) -> None:
    """Give every node that has none a formatted data folder.

    Kafka's own tool formats the first; the others get its bootstrap file, which names feature levels only,
    and a `meta.properties` of their own: one JVM start instead of three. A data folder appears by a rename,
    so one whose formatting was interrupted is never taken for a good one.
    """
    fresh = [node for node in nodes if not node.data.exists()]
    if not fresh:
        return
    cluster = _cluster_of(nodes) or _kafka_uuid()
    first = _unfinished(fresh[0])
    _run_storage_tool(fresh[0], cluster)
    for node in fresh[1:]:
        folder = _unfinished(node)
        folder.mkdir()
        shutil.copy(first / "bootstrap.checkpoint", folder)
        identity = {
            "version": "1",
            "cluster.id": cluster,
            "node.id": str(node.number),
            "directory.id": _kafka_uuid(),
        }
        _write_properties(folder / "meta.properties", identity)
    for node in fresh:
        _unfinished(node).rename(node.data)


def log_tail(node: Node, lines: int = 3) -> str:
    """The last lines that the node wrote, for an error message."""
    try:
        text = node.log.read_text(errors="replace")[-20_000:].splitlines()
    except OSError:
        return ""
    telling = [line for line in text if line.strip() and not line.startswith(("SLF4J", "\tat "))]
    return " | ".join(line.strip()[:200] for line in telling[-lines:])


def _java(heap_mb: int) -> list[str]:
    classpath = ":".join(str(path) for path in jars.classpath("kafka"))
    flags = ["-Xms64m", f"-Xmx{heap_mb}m", *JVM_FLAGS, *archive.options("kafka")]
    return [str(java.find().java), *flags, "-cp", classpath]


def _settings(node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    copies = sum(one.is_broker for one in nodes)
    in_sync = 2 if copies >= 3 else 1
    voters = ",".join(f"{one.number}@{one.controller_address}" for one in nodes if one.is_controller)
    listeners = {}
    if node.is_broker:
        listeners["broker"] = f"PLAINTEXT://{node.address}"
    if node.is_controller:
        listeners["controller"] = f"CONTROLLER://{node.controller_address}"
    settings = {
        "process.roles": ",".join(listeners),
        "listeners": ",".join(listeners.values()),
        "node.id": node.number,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": node.data,
        "auto.create.topics.enable": "false",
        "num.partitions": 1,
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        # A dead node is noticed sooner than in the usual 9 s; a killed one may come back only after that.
        # Several nodes on one small machine stall each other, so they get more time than one alone.
        "broker.session.timeout.ms": 2000 if copies == 1 else 4000,
        "broker.heartbeat.interval.ms": 300,
        # A new leader is of use only when a follower has asked it: by default half a second or a whole one later.
        "replica.fetch.wait.max.ms": 50,
        "replica.fetch.backoff.ms": 50,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "log.index.size.max.bytes": 1 << 20,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 8 << 20,
    }
    if node.is_broker:
        settings |= {"advertised.listeners": listeners["broker"], "inter.broker.listener.name": "PLAINTEXT"}
    return {name: str(value) for name, value in settings.items()}


def _run_storage_tool(node: Node, cluster: str) -> None:
    unfinished = _unfinished(node)
    shutil.rmtree(unfinished, ignore_errors=True)
    properties = node.folder / "format.properties"
    text = node.properties.read_text().replace(f"log.dirs={node.data}\n", f"log.dirs={unfinished}\n")
    _write(properties, text)
    tool = process.launch(
        [*_java(64), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)], log=node.log
    )
    try:
        code = tool.wait(_FORMAT_SECONDS)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        process.kill(tool)
    if code != 0:
        raise LockstepError(
            f"cannot format the broker's data folder {node.folder}: {log_tail(node, 1)}",
            hint=f"look into {node.log}; is the disk full or read-only?",
        )


def _unfinished(node: Node) -> Path:
    return node.folder / "data.unfinished"


def _cluster_of(nodes: Sequence[Node]) -> str | None:
    """The cluster that the already formatted nodes belong to."""
    for node in nodes:
        meta = node.data / "meta.properties"
        if meta.exists():
            for line in meta.read_text().splitlines():
                if line.startswith("cluster.id="):
                    return line.partition("=")[2]
    return None


def _kafka_uuid() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # it would look like an option to the storage tool
            return text


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    _write(path, "".join(f"{name}={value}\n" for name, value in settings.items()))


def _write(path: Path, text: str) -> None:
    path.touch(0o600)  # a broker's settings may hold passwords
    path.chmod(0o600)
    path.write_text(text)
