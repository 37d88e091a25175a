"""The five configurations of the paper's micro-benchmarks, over a chain of map tasks.

| name | what runs |
|---|---|
| `none` | plain Spark, 60 s batches: no replication, hardly a checkpoint |
| `passive` | plain Spark, 5 s batches: checkpoints to restart from |
| `no-order` | two of plain Spark, each on its own; the first arrival of an output counts |
| `kazoo`, `liverobin` | Lockstep, two sites, every task merges the partitions of what it reads |
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import Popen
from typing import Literal

import lockstep
from lockstep import process
from lockstep.bench import chain
from lockstep.bench.peers import plain_chain
from lockstep.bench.probe import Probe
from lockstep.bench.sides import Side, create_topics, kill_tree, plain_consumer, values
from lockstep.errors import LockstepError
from lockstep.replicas.settings import Order

Configuration = Literal["none", "passive", "no-order", "kazoo", "liverobin"]
CONFIGURATIONS: tuple[Configuration, ...] = ("none", "passive", "no-order", "kazoo", "liverobin")
BATCH_MS = {"none": 60_000, "passive": 5_000, "no-order": 60_000}


class ChainSide(Side):
    """`tasks` maps in a row over topics of `partitions` partitions; the first one reads `sources` topics."""

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        folder: Path,
        configuration: Configuration,
        *,
        tasks: int = 1,
        partitions: int = 2,
        sources: int = 1,
        period_ms: float | None = None,
    ) -> None:
        super().__init__(name, bootstrap_servers, folder, topics=sources, partitions=partitions)
        self.configuration: Configuration = configuration
        self._tasks = tasks
        self._partitions = partitions
        self._period_ms = period_ms
        self._plain: list[Popen[bytes]] = []

    @property
    def _replicated(self) -> bool:
        return self.configuration in ("kazoo", "liverobin")

    def _topics(self, replica: str) -> list[list[str]]:
        between = [[f"{self.name}-{replica}-{number}"] for number in range(1, self._tasks)]
        new = {topic: self._partitions for (topic,) in between}
        if new:
            create_topics(self.bootstrap_servers, new)
        return [self.sources, *between, [self.sink]]

    def launch(self) -> None:
        if self._replicated:
            file = self.folder / "pipeline.py"
            file.write_text(chain.pipeline_file(self._topics("all")))
            order: Order = "kazoo" if self.configuration == "kazoo" else "liverobin"
            self.job = lockstep.run(
                file,
                name=self.name,
                sites=2,
                engine="realtime",
                order=order,
                period_ms=self._period_ms,
                bootstrap_servers=self.bootstrap_servers,
                digests=False,
                folder=self.folder / "run",
            )
            return
        for replica in ("a", "b") if self.configuration == "no-order" else ("a",):
            self._plain.append(
                plain_chain.start(
                    self.bootstrap_servers,
                    self._topics(replica),
                    self.folder / replica,
                    BATCH_MS[self.configuration],
                    self._partitions * len(self.sources),
                )
            )

    def end(self) -> None:
        if hasattr(self, "job"):
            self.job.stop()
        for running in self._plain:
            kill_tree(running.pid)
            process.kill(running)

    def new_probe(self) -> Probe:
        return Probe(self.reader(), oracle=lambda n: self._tasks)

    def reader(self) -> Callable[[float], Iterable[bytes]]:
        if self._replicated:
            self._ours = self.job.consumer()
            return lambda timeout: [record.value or b"" for record in self._ours.records(timeout)]
        self._theirs = plain_consumer(self.bootstrap_servers, self.sink)
        return lambda timeout: values(self._theirs, timeout)

    def close_reader(self) -> None:
        for name in ("_ours", "_theirs"):
            if hasattr(self, name):
                getattr(self, name).close()

    def pids(self) -> list[int]:
        if self._replicated:
            return [int(site["pid"]) for site in self.job.status()["sites"].values() if site.get("pid")]
        return [running.pid for running in self._plain]

    def check(self) -> None:
        if self._replicated:
            self.job.check()
        for running in self._plain:
            if running.poll() is not None:
                raise LockstepError(f"{self.name} ended with code {running.poll()}", hint=self.hint())
