"""The sides of the pipeline benches: plain Spark and Lockstep, each with topics and a folder of its own.

A side is started, fed through its own input topic, watched through its probe, and stopped. All sides run the
same count per key (`count.py`) over the same kind of load (`load.py`).
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import lockstep
from lockstep import process
from lockstep.bench.load import Load
from lockstep.bench.peers import plain_spark
from lockstep.bench.probe import Probe
from lockstep.errors import LockstepError
from lockstep.replicas.settings import Engine, Order

OUTPUT_PARTITIONS = 2
START_SECONDS = 120.0
CONNECTED_SECONDS = 2.0

_PIPELINE = """\
import lockstep
from lockstep.bench.count import counts

count = lockstep.pipeline(inputs=[{inputs}], output="{sink}", key="key")(counts)
"""


@dataclass(frozen=True)
class Use:
    """What a side's processes have used."""

    cpu_seconds: float
    memory_mb: float


class Side(ABC):
    """One side in one round. `name` is unique within a bench's run."""

    def __init__(
        self, name: str, bootstrap_servers: str, folder: Path, *, topics: int = 1, partitions: int = 1
    ) -> None:
        self.name = name
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sources = [f"{name}-in-{number}" for number in range(topics)]
        self.sink = f"{name}-out"
        self.produced = 0
        self.probe: Probe
        create_topics(
            bootstrap_servers, {**dict.fromkeys(self.sources, partitions), self.sink: OUTPUT_PARTITIONS}
        )

    def __enter__(self) -> Self:
        try:
            self.launch()
            self.probe = self.new_probe()
            self.warm_up()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if hasattr(self, "probe"):
            self.probe.close()
        self.close_reader()
        self.end()

    @property
    def source(self) -> str:
        """The input topics, separated by commas."""
        return ",".join(self.sources)

    def load(self, rate: int, seconds: float) -> Load:
        return Load(self.bootstrap_servers, self.source, rate, seconds, first=self.produced)

    def feed(self, rate: int, seconds: float) -> tuple[float, float]:
        """Feed the side and wait until every output is there; from when to when to measure.

        A new producer's first records wait for its connection: those are left out.
        """
        load = self.load(rate, seconds)
        began = time.monotonic()
        count = load.start(self.folder).wait()
        ended = time.monotonic()
        self.produced += count
        if not self.probe.wait_for(load.first, count, 60, self.check):
            raise LockstepError(
                f"{self.name}: outputs are missing 60 s after the load's end", hint=self.hint()
            )
        return began + CONNECTED_SECONDS, ended

    def warm_up(self) -> None:
        """The first output shows that the side runs; what follows warms its code."""
        count = self.load(20, 1).start(self.folder).wait()
        if not self.probe.wait_for(self.produced, count, START_SECONDS, self.check):
            raise LockstepError(f"{self.name} gave no output within {START_SECONDS:.0f} s", hint=self.hint())
        self.produced += count

    def new_probe(self) -> Probe:
        return Probe(self.reader())

    @abstractmethod
    def launch(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    @abstractmethod
    def reader(self) -> Callable[[float], Iterable[bytes]]: ...

    @abstractmethod
    def close_reader(self) -> None: ...

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that lead the side's process groups, one for each site."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the side has failed."""

    def hint(self) -> str:
        return f"its logs are in {self.folder}"

    def use(self) -> Use:
        """CPU seconds so far and resident memory now, per site."""
        trees = [_tree(pid) for pid in self.pids()]
        cpu = sum(sum(one.cpu_times()[:2]) for tree in trees for one in tree)
        memory = sum(one.memory_info().rss for tree in trees for one in tree)
        sites = max(1, len(trees))
        return Use(cpu / sites, memory / 2**20 / sites)


class PlainSide(Side):
    """Plain Spark. Killed and started again at once on its checkpoint, it is passive replication."""

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        folder: Path,
        batch_ms: int,
        *,
        topics: int = 1,
        as_it_comes: bool = False,
    ) -> None:
        super().__init__(name, bootstrap_servers, folder, topics=topics)
        self._batch_ms = batch_ms
        self._as_it_comes = as_it_comes
        self._consumer = plain_consumer(bootstrap_servers, self.sink)

    def launch(self) -> None:
        self._process = plain_spark.start(
            self.bootstrap_servers,
            self.source,
            self.sink,
            self.folder,
            self._batch_ms,
            as_it_comes=self._as_it_comes,
        )

    def end(self) -> None:
        if hasattr(self, "_process"):
            kill_tree(self._process.pid)
            process.kill(self._process)

    def reader(self) -> Callable[[float], Iterable[bytes]]:
        return lambda timeout: values(self._consumer, timeout)

    def close_reader(self) -> None:
        self._consumer.close()

    def pids(self) -> list[int]:
        return [self._process.pid]

    def check(self) -> None:
        if self._process.poll() is not None:
            raise LockstepError(f"{self.name} ended with code {self._process.poll()}", hint=self.hint())

    def kill_and_restart(self) -> None:
        self.end()
        self.launch()


class LockstepSide(Side):
    """Lockstep with so many sites."""

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        folder: Path,
        *,
        sites: int,
        topics: int = 1,
        order: Order = "auto",
        coordination: str | None = None,
        period_ms: float | None = None,
        batch_ms: int | None = None,
        engine: Engine = "realtime",
        clean: str | None = None,
    ) -> None:
        super().__init__(name, bootstrap_servers, folder, topics=topics)
        self._sites = sites
        self._order: Order = order
        self._coordination = coordination
        self._period_ms = period_ms
        self._batch_ms = batch_ms
        self._engine: Engine = engine
        self._clean = clean

    def launch(self) -> None:
        file = self.folder / "pipeline.py"
        inputs = repr(self.sources[0] if len(self.sources) == 1 else tuple(self.sources))
        file.write_text(_PIPELINE.format(inputs=inputs, sink=self.sink))
        self.job = lockstep.run(
            file,
            name=self.name,
            sites=self._sites,
            engine=self._engine,
            order=self._order,
            coordination=self._coordination,
            period_ms=self._period_ms,
            output_partitions=OUTPUT_PARTITIONS,
            bootstrap_servers=self.bootstrap_servers,
            batch_ms=self._batch_ms,
            clean=self._clean,
            folder=self.folder / "run",
        )

    def end(self) -> None:
        if hasattr(self, "job"):
            self.job.stop()

    def reader(self) -> Callable[[float], Iterable[bytes]]:
        self._consumer = self.job.consumer()
        return lambda timeout: [record.value or b"" for record in self._consumer.records(timeout)]

    def close_reader(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.close()

    def pids(self) -> list[int]:
        return [int(site["pid"]) for site in self.job.status()["sites"].values() if site.get("pid")]

    def check(self) -> None:
        self.job.check()


def create_topics(bootstrap_servers: str, topics: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    new = [NewTopic(name, partitions) for name, partitions in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(30)


def plain_consumer(bootstrap_servers: str, topic: str, options: dict[str, str] | None = None) -> Consumer:
    """A consumer that knows nothing of Lockstep, at the beginning of a side's output."""
    consumer = Consumer(
        {
            **(options or {}),
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{topic}",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign(
        [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(OUTPUT_PARTITIONS)]
    )
    return consumer


def values(consumer: Consumer, timeout: float) -> list[bytes]:
    """What is there, without waiting for more than one record."""
    first = consumer.poll(timeout)
    if first is None:
        return []
    messages = [first, *consumer.consume(1000, 0)]
    values = []
    for message in messages:
        error = message.error()
        if error is None:
            values.append(message.value() or b"")
        elif error.code() != KafkaError._PARTITION_EOF:
            raise LockstepError(f"reading the output failed: {error}")
    return values


def kill_tree(pid: int) -> None:
    for one in reversed(_tree(pid)):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []
