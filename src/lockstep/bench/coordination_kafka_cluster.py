"""Two Kafka 3.9.1 brokers that keep their metadata in an ensemble (RT-ZooKeeper, section 7, figure 11).

Kafka is as it comes, and so is its ZooKeeper client: the paper's **patient** one. It waits a random 0 to 1,000 ms
before it dials again, and a further second after it has tried every server. The paper's authors patched the client
library for their **impatient** one (50 ms). Both waits are one constant of one class, so that class with 50 in
place of 1,000, before the jar on the classpath, is all it takes; the verified jar stays untouched.

As in the paper, a broker's session timeout is two ticks, the shortest that an ensemble grants.
"""

import os
import struct
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.ports import free_ports
from lockstep.setup import jars, java

VERSION: Final = "3.9.1"
BROKERS: Final = (0, 1)
CHROOT: Final = "/kafka"
PATIENT_MS, IMPATIENT_MS = 1000, 50
START_SECONDS = 90.0
_CLIENT = "org/apache/zookeeper/ClientCnxn$SendThread.class"
_CLIENT_OPTIONS = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.connection.setup.timeout.ms": 1000,
}


class KafkaPair:
    """Brokers 0 and 1 as processes. They die with this process."""

    def __init__(self, folder: Path, ensemble: str, *, tick_ms: int, patient: bool = True) -> None:
        self.folder = folder
        self.ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
        self._ensemble = ensemble
        self._session_ms = 2 * tick_ms
        self._patient = patient
        self._processes: dict[int, Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def options(self) -> dict[str, object]:
        """For every Kafka client of an experiment: quick to notice that a broker is back."""
        return {"bootstrap.servers": self.bootstrap_servers, **_CLIENT_OPTIONS}

    @property
    def running(self) -> list[int]:
        return sorted(broker for broker, running in self._processes.items() if running.poll() is None)

    def start(self) -> None:
        """Start both and wait until each knows the other."""
        runtime = java.find()
        if jars.missing("kafka-zookeeper"):
            jars.fetch("kafka-zookeeper", java=runtime)
        classpath = [str(jar) for jar in jars.classpath("kafka-zookeeper")]
        if not jars.missing("kafka"):  # it has where Kafka's warnings can go
            classpath += [str(jar) for jar in jars.classpath("kafka") if "slf4j-simple" in jar.name]
        if not self._patient:
            (client,) = (Path(jar) for jar in classpath if Path(jar).name.startswith("zookeeper-3"))
            classpath.insert(0, str(impatient_client(client, self.folder / "impatient")))
        self._command = [str(runtime.java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", os.pathsep.join(classpath)]
        for broker in BROKERS:
            self.start_broker(broker)
        self.admin = AdminClient(self.options)
        self.wait_brokers()

    def stop(self) -> None:
        for broker in list(self._processes):
            process.kill(self._processes.pop(broker))

    def start_broker(self, broker: int) -> None:
        home = self.folder / str(broker)
        home.mkdir(parents=True, exist_ok=True)
        properties = home / "server.properties"
        properties.write_text(
            "".join(f"{key}={value}\n" for key, value in self._settings(broker, home).items())
        )
        command = [*self._command, "kafka.Kafka", str(properties)]
        self._processes[broker] = process.launch(command, log=self.folder / f"broker-{broker}.log")

    def kill(self, broker: int) -> None:
        """kill -9."""
        process.kill(self._processes.pop(broker))

    def wait_brokers(self, seconds: float = START_SECONDS) -> None:
        """Wait until every running broker is part of the cluster."""
        self._wait(
            lambda: set(self.admin.list_topics(timeout=2).brokers) >= set(self.running),
            seconds,
            "not all brokers are there",
        )

    def create_topic(self, topic: str, seconds: float = 60.0) -> float:
        """Create a topic of one partition on both brokers; how long that took in seconds."""
        began = time.monotonic()
        while True:
            try:
                new = NewTopic(topic, 1, len(BROKERS))
                self.admin.create_topics([new], request_timeout=seconds)[topic].result()
            except KafkaException as error:
                is_there = error.args[0].name() == "TOPIC_ALREADY_EXISTS"
                if not is_there and time.monotonic() - began > seconds:
                    raise LockstepError(f"cannot create {topic}: {error}", hint=self._hint) from error
                if not is_there:
                    self._find_controller()
                    continue
            return time.monotonic() - began

    def _find_controller(self) -> None:
        """An admin client keeps the controller that it knows until it is told all about the cluster again."""
        time.sleep(0.02)
        with suppress(KafkaException):
            self.admin.list_topics(timeout=2)

    def leader(self, topic: str) -> int | None:
        """The broker that leads the topic's partition; None while nobody does or nobody answers."""
        return self._partition(topic)[0]

    def wait_replicated(self, topic: str, seconds: float = START_SECONDS) -> int:
        """Wait until both brokers hold everything; the one that leads."""
        found: list[int] = []

        def replicated() -> bool:
            leader, in_sync = self._partition(topic)
            if leader is not None and in_sync == len(BROKERS):
                found.append(leader)
            return bool(found)

        self._wait(replicated, seconds, f"{topic} is not on both brokers")
        return found[0]

    def _partition(self, topic: str) -> tuple[int | None, int]:
        try:
            partition = self.admin.list_topics(topic, timeout=2).topics[topic].partitions[0]
        except (KafkaException, KeyError):
            return None, 0
        return (partition.leader if partition.leader in self.running else None), len(partition.isrs)

    def _wait(self, condition: Callable[[], bool], seconds: float, problem: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except KafkaException:
                pass  # nobody answers yet
            ended = [broker for broker, one in self._processes.items() if one.poll() is not None]
            if ended:
                raise LockstepError(f"broker {ended[0]} ended", hint=self._hint)
            if time.monotonic() > deadline:
                raise LockstepError(f"{problem} after {seconds:.0f} s", hint=self._hint)
            time.sleep(0.02)

    @property
    def _hint(self) -> str:
        return f"the brokers' logs are in {self.folder}"

    def _settings(self, broker: int, home: Path) -> dict[str, object]:
        return {
            "broker.id": broker,
            "zookeeper.connect": self._ensemble + CHROOT,
            "zookeeper.session.timeout.ms": self._session_ms,
            "zookeeper.connection.timeout.ms": 30_000,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[broker]}",
            "log.dirs": home / "logs",
            "default.replication.factor": len(BROKERS),
            "offsets.topic.replication.factor": len(BROKERS),
            "offsets.topic.num.partitions": 1,
            "auto.create.topics.enable": "false",
            "auto.leader.rebalance.enable": "false",
            "unclean.leader.election.enable": "false",
            "log.cleaner.enable": "false",
            "num.network.threads": 1,
            "num.io.threads": 2,
            "background.threads": 2,
        }


def impatient_client(jar: Path, folder: Path) -> Path:
    """A folder with the client's class that waits 50 ms where the one in `jar` waits 1,000."""
    with zipfile.ZipFile(jar) as archive:
        patched = with_long(archive.read(_CLIENT), PATIENT_MS, IMPATIENT_MS)
    path = folder / _CLIENT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(patched)
    return folder


def with_long(classfile: bytes, old: int, new: int) -> bytes:
    """The class with another value of its one long constant `old`. Its constants come first (JVM spec, 4.4)."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
    places = []
    (count,) = struct.unpack_from(">H", classfile, 8)
    at, number = 10, 1
    while number < count:
        tag = classfile[at]
        if tag == 1:
            at += 3 + struct.unpack_from(">H", classfile, at + 1)[0]
        else:
            if tag == 5 and struct.unpack_from(">q", classfile, at + 1)[0] == old:
                places.append(at + 1)
            at += 1 + sizes[tag]
        number += 2 if tag in (5, 6) else 1  # eight bytes take two numbers
    if len(places) != 1:
        raise LockstepError(
            f"the ZooKeeper client of Kafka {VERSION} has {len(places)} long constants {old}, not one",
            hint="it is another version than the pinned one: run `lockstep setup --set kafka-zookeeper`",
        )
    return classfile[: places[0]] + struct.pack(">q", new) + classfile[places[0] + 8 :]
