"""The sides of `lockstep bench bettercloud`: plain Spark and Lockstep, fed by the example's own generator.

Plain Spark reads both topics in whatever order they arrive: one site, killed for good (no replication) or
restarted on its checkpoint (passive), or two sites whose outputs are merged by event (no ordering). Lockstep runs
the example (`examples/bettercloud`) on two sites: in real time as two stages, in micro-batches as one.
"""

import importlib
import os
import re
import shutil
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal, Self

import lockstep
from lockstep import process
from lockstep.bench.peers import plain_bettercloud
from lockstep.bench.sides import create_topics, kill_tree, plain_consumer, values
from lockstep.errors import LockstepError, UsageError
from lockstep.replicas.job import Job
from lockstep.replicas.layout import RunFolder

Engine = Literal["realtime", "microbatch"]
Poll = Callable[[float], Iterable[bytes]]
OUTPUT_PARTITIONS = 2
START_SECONDS = 180.0
COPIED = ("dataflow.py", "batches.py")

_STAGES = """\
import lockstep
from dataflow import ONE_REDUCER, counted_alerts, qualified_events


@lockstep.pipeline(
    inputs=[("{events}", lockstep.broadcast("{controls}"))],
    output="{qualified}",
    key="customerId",
    options=ONE_REDUCER,
)
def qualified(merged):
    return qualified_events(merged, "{controls}")


@lockstep.pipeline(inputs=["{qualified}"], output="{alerts}", key="customerId", options=ONE_REDUCER)
def alerts(qualified):
    return counted_alerts(qualified)
"""
_BATCHES = """\
import lockstep
from batches import alerts_in_batches
from dataflow import ONE_REDUCER


@lockstep.pipeline(
    inputs=[("{events}", lockstep.broadcast("{controls}"))],
    output="{alerts}",
    key="customerId",
    options={{"outputMode": "update", **ONE_REDUCER}},
)
def alerts(merged):
    return alerts_in_batches(merged, "{controls}")
"""


def example_folder() -> Path:
    """Where the example is: in a checkout, or below the current folder."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "examples" / "bettercloud" / "dataflow.py").is_file():
            return root / "examples" / "bettercloud"
    raise UsageError("examples/bettercloud is not here", hint="run this bench in a checkout of Lockstep")


def example_module(name: str) -> Any:
    """A module of the example: `oracle` or `agreed`."""
    folder = str(example_folder())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


class Arrivals:
    """Every alert that a reader of the output sees, with the moment of its arrival."""

    def __init__(self, poll: Poll) -> None:
        self._poll = poll
        self.rows: list[tuple[float, bytes]] = []
        """(milliseconds since 1970, value), in the order of arrival."""
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="arrivals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def wait(self, count: int, seconds: float, abort: Callable[[], None]) -> bool:
        """Whether so many alerts arrived in time."""
        deadline = time.monotonic() + seconds
        while len(self.rows) < count:
            if self._failure is not None:
                raise LockstepError(f"reading the alerts failed: {self._failure}") from self._failure
            abort()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _collect(self) -> None:
        try:
            while not self._stopping.is_set():
                found = self._poll(0.05)
                now = time.time() * 1000
                self.rows.extend((now, value) for value in found)
        except BaseException as error:
            self._failure = error


class Side(ABC):
    """One configuration in one round; `name` is unique within the bench."""

    def __init__(self, name: str, bootstrap_servers: str, folder: Path, engine: Engine) -> None:
        self.name = name
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder / name
        self.engine = engine
        self.events, self.controls, self.alerts = f"{name}-events", f"{name}-controls", f"{name}-alerts"
        self.arrivals: Arrivals
        self._feed: Popen[bytes] | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        create_topics(bootstrap_servers, {self.events: 1, self.controls: 1, self.alerts: OUTPUT_PARTITIONS})

    def __enter__(self) -> Self:
        try:
            self.launch()
            self.arrivals = Arrivals(self.reader())
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._feed is not None:
            process.kill(self._feed)
        if hasattr(self, "arrivals"):
            self.arrivals.close()
        self.end()

    def start_feed(self, rate: int, seconds: float, seed: int, *, controls_per_second: int = 5) -> None:
        command = [sys.executable, str(example_folder() / "feed.py"), f"--count-file={self.count_file}"]
        command += [f"--bootstrap-servers={self.bootstrap_servers}", f"--seed={seed}"]
        command += [f"--events={self.events}", f"--controls={self.controls}", f"--rate={rate}"]
        command += [f"--seconds={seconds}", f"--controls-per-second={controls_per_second}"]
        self.count_file.unlink(missing_ok=True)
        self._feed = process.launch(command, log=self.folder / "feed.log")

    def finish_feed(self) -> int:
        """Wait for the feed's end; how many records it sent."""
        if self._feed is None:
            raise LockstepError("there is no feed to wait for")
        self._feed.wait(600)
        if not self.count_file.is_file():
            raise LockstepError(f"{self.name}: the feed failed", hint=f"see {self.folder / 'feed.log'}")
        return int(self.count_file.read_text())

    @property
    def count_file(self) -> Path:
        return self.folder / "feed.count"

    @property
    def recovers(self) -> bool:
        """Whether alerts go on, sooner or later, after the kill."""
        return True

    @abstractmethod
    def launch(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    @abstractmethod
    def reader(self) -> Poll: ...

    @abstractmethod
    def kill(self) -> str:
        """kill -9 of what the configuration names; what it was."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the side has failed."""


class PlainSide(Side):
    """Plain Spark on `sites` sites that know nothing of each other."""

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        folder: Path,
        engine: Engine,
        *,
        sites: int,
        restart: bool,
        batch_ms: int,
    ) -> None:
        super().__init__(name, bootstrap_servers, folder, engine)
        self._restart = restart
        self._batch_ms = batch_ms
        self._names = [f"plain-{number + 1}" for number in range(sites)]
        self._sites: dict[str, Popen[bytes]] = {}
        self._dead: set[str] = set()

    @property
    def recovers(self) -> bool:
        return self._restart

    def launch(self) -> None:
        for site in self._names:
            self._start(site)

    def end(self) -> None:
        for site in self._sites.values():
            _kill(site)
        if "_consumer" in self.__dict__:
            self._consumer.close()

    @cached_property
    def _consumer(self) -> Any:
        return plain_consumer(self.bootstrap_servers, self.alerts)

    def reader(self) -> Poll:
        return lambda timeout: values(self._consumer, timeout)

    def kill(self) -> str:
        site = self._names[0]
        _kill(self._sites[site])
        if self._restart:
            self._start(site)
            return f"{site}, restarted at once"
        self._dead.add(site)
        return f"{site}, for good"

    def check(self) -> None:
        for name, site in self._sites.items():
            if name not in self._dead and site.poll() is not None:
                raise LockstepError(
                    f"{self.name}: {name} ended with code {site.poll()}",
                    hint=f"its log: {self.folder / name / 'spark.log'}",
                )

    def _start(self, site: str) -> None:
        self._sites[site] = plain_bettercloud.start(
            self.bootstrap_servers,
            events=self.events,
            controls=self.controls,
            alerts=self.alerts,
            example=example_folder(),
            folder=self.folder / site,
            engine=self.engine,
            batch_ms=self._batch_ms,
        )


def _kill(site: "Popen[bytes]") -> None:
    """The driver and its JVM at once."""
    kill_tree(site.pid)
    process.kill(site)


class LockstepSide(Side):
    """The example under an order, on two sites. `victim`: a site, or the process that makes the order."""

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        folder: Path,
        engine: Engine,
        *,
        order: Literal["auto", "kazoo"],
        victim: Literal["site", "leader", "generator"],
        batch_ms: int,
        sites: int = 2,
    ) -> None:
        super().__init__(name, bootstrap_servers, folder, engine)
        self.order = order
        self._victim = victim
        self._batch_ms = batch_ms
        self._sites = sites
        self.job: Job

    @property
    def merged(self) -> str:
        return f"{self.events}+{self.controls}!"

    def launch(self) -> None:
        for copied in COPIED:
            shutil.copy(example_folder() / copied, self.folder / copied)
        qualified = f"{self.name}-qualified"
        file = self.folder / "stages.py"
        text = _STAGES if self.engine == "realtime" else _BATCHES
        file.write_text(
            text.format(events=self.events, controls=self.controls, qualified=qualified, alerts=self.alerts)
        )
        self.job = lockstep.run(
            file,
            name=self.name,
            sites=self._sites,
            engine=self.engine,
            order=self.order,
            bootstrap_servers=self.bootstrap_servers,
            batch_ms=self._batch_ms,
            trim_seconds=0,  # the oracle replays the order from its beginning
            folder=self.folder / "run",
        )

    def end(self) -> None:
        if "_consumer" in self.__dict__:
            self._consumer.close()
        if hasattr(self, "job"):
            self.job.stop()

    @cached_property
    def _consumer(self) -> Any:
        return self.job.consumer()

    def reader(self) -> Poll:
        return lambda timeout: [record.value or b"" for record in self._consumer.records(timeout)]

    def kill(self) -> str:
        if self._victim == "site":
            site = str(self.job.sites[0])
            self.job.kill(site)
            return site
        name = self._order_maker()
        folder = RunFolder(self.job.folder).orders(name)
        pid = folder.live_pid()
        if pid is None:
            raise LockstepError(f"{self.name}: {name} does not run", hint=f"its log: {folder.log}")
        os.kill(pid, signal.SIGKILL)
        return name

    def _order_maker(self) -> str:
        """The first generator, or the process that leads now, by its own words."""
        if self._victim == "generator":
            return "generator-1"
        epochs: dict[str, int] = {}
        for folder in (self.job.folder / "orders").glob("leader-*"):
            log = RunFolder(self.job.folder).orders(folder.name).log.read_text()
            led = re.findall(r'"leading".*?"epoch": ?(\d+)', log)
            epochs[folder.name] = int(led[-1]) if led else 0
        if not any(epochs.values()):
            raise LockstepError(f"{self.name}: no leader leads", hint=f"see {self.job.folder / 'orders'}")
        return max(epochs, key=lambda name: epochs[name])

    def check(self) -> None:
        self.job.check()
