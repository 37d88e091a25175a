"""The embedded broker: a real Kafka of 1 or 3 KRaft nodes, for every command without `--bootstrap-servers`.

    with Broker(folder) as broker:
        ... broker.bootstrap_servers ...

1. A folder belongs to one broker at a time (flock: the kernel frees it even after a kill -9).
2. Nodes are tied to this process: when it dies, by whatever signal, they die.
3. A node is ready when it answers as a member of the cluster, never because time has passed.
4. Data, cluster identity and, where they are still free, ports survive a restart.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lockstep import process
from lockstep.errors import LockstepError, UsageError
from lockstep.log import kraft
from lockstep.log.kraft import Node
from lockstep.log.security import Security
from lockstep.observe.logger import get_logger
from lockstep.ports import free_port, is_free

READY_SECONDS = 60.0
LEAST_FREE_MB = 200
_PORT_ATTEMPTS = 3
_POLL_SECONDS = 0.02

logger = get_logger(__name__)


class Broker:
    """A Kafka of `nodes` nodes, numbered from 1, whose data lives in `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        port: int = 0,
        heap_mb: int = 256,
        settings: Mapping[str, str] | None = None,
        security: Security | None = None,
        own_controller: bool = False,
    ) -> None:
        """With `port`, node n listens on `port` + n - 1; else on free ports. `settings` go to every node.

        With `security` clients have to log in. With `own_controller` the nodes are brokers alone and their
        controller is a process apart, as Kafka advises for production: then no killed node is the controller.
        """
        if nodes not in (1, 3):
            raise UsageError(f"a broker has 1 or 3 nodes, not {nodes}")
        if port and not 1 <= port <= 65536 - nodes:
            raise UsageError(f"{port} is not a port", hint="choose one between 1024 and 65000")
        self.folder = folder.absolute()
        self._count = nodes
        self._port = port
        self._heap_mb = heap_mb
        self._settings = dict(settings or {})
        self._security = security
        if own_controller and security is not None:
            raise UsageError("a broker with a controller of its own takes no security settings")
        self._own_controller = own_controller
        self._nodes: tuple[Node, ...] = ()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lock: IO[str] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self._nodes if node.is_broker)

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(range(1, self._count + 1))

    def pid(self, node: int = 1) -> int:
        return self._processes[node].pid

    def running(self, node: int = 1) -> bool:
        return node in self._processes and self._processes[node].poll() is None

    def log_file(self, node: int = 1) -> Path:
        return self._nodes[node - 1].log

    def start(self) -> "Broker":
        """Start all nodes and return when every one of them answers."""
        if self._lock is not None:
            raise UsageError(f"the broker in {self.folder} is already started")
        with _disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_folder()
            try:
                self._bring_up()
            except BaseException:
                self.stop(grace=0.0)
                raise
        return self

    def stop(self, *, grace: float = 10.0) -> None:
        """Stop all nodes and give the folder back. Stopping a stopped broker is fine."""
        if grace > 0:
            for running in self._processes.values():
                if running.poll() is None:
                    running.terminate()
        deadline = time.monotonic() + grace
        for running in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(max(0.0, deadline - time.monotonic()))
            process.kill(running)
        self._processes.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self, node: int = 1) -> None:
        """kill -9 of one node."""
        process.kill(self._processes[node])

    def restart(self, node: int = 1) -> None:
        """Start a node that was killed or has ended (a running one is stopped first), on its old port."""
        process.stop(self._processes[node])
        self._launch(self._nodes[node - 1])
        self._record()
        self._await_ready([self._nodes[node - 1]])

    def check(self) -> None:
        """Raise if a node that should run has ended."""
        for node in self._nodes:
            if not self.running(node.number):
                raise self._ended(node)

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _bring_up(self) -> None:
        free_mb = shutil.disk_usage(self.folder).free >> 20
        if free_mb < LEAST_FREE_MB:
            raise LockstepError(
                f"only {free_mb} MB are free on the disk of {self.folder}",
                hint=f"free at least {LEAST_FREE_MB} MB, or choose another folder",
            )
        stored = self._read_record()
        self._await_predecessor(stored)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._nodes = self._place(stored if attempt == 1 else {})
            kraft.configure(self._nodes, self._settings, self._security)
            kraft.format_storage(self._nodes)
            for node in self._nodes:
                self._launch(node)
            self._record()
            try:
                self._await_ready(self._nodes)
                return
            except LockstepError:
                # Another process may have taken a port between our asking and the node's binding.
                taken = [node for node in self._nodes if not self.running(node.number)]
                for running in self._processes.values():
                    process.kill(running)
                if self._port or attempt == _PORT_ATTEMPTS or not any(map(_port_lost, taken)):
                    raise

    def _place(self, stored: dict[str, Any]) -> tuple[Node, ...]:
        before = stored.get("ports", [])
        placed = []
        chosen: set[int] = set()
        for number in range(1, self._count + 1 + self._own_controller):
            old = before[number - 1] if number <= len(before) else (0, 0)
            is_broker = number <= self._count
            if self._port and is_broker:
                port = self._port + number - 1
                if not is_free(port):
                    raise LockstepError(
                        f"port {port} is already in use", hint="choose another with --port, or leave it out"
                    )
            else:
                port = free_port(old[0], chosen)
            chosen.add(port)
            controller_port = free_port(old[1], chosen)
            chosen.add(controller_port)
            is_controller = is_broker != self._own_controller
            folder = self.folder / f"node-{number}"
            placed.append(Node(number, folder, port, controller_port, is_broker, is_controller))
        return tuple(placed)

    def _launch(self, node: Node) -> None:
        started = process.launch(kraft.command(node, heap_mb=self._heap_mb), log=node.log)
        logger.info(
            "node %d of the broker in %s: pid %d, %s", node.number, self.folder, started.pid, node.address
        )
        self._processes[node.number] = started

    def _await_ready(self, nodes: tuple[Node, ...] | list[Node]) -> None:
        """Until each node, asked itself, knows all running nodes as members."""
        deadline = time.monotonic() + READY_SECONDS
        for node in nodes:
            if not node.is_broker:
                continue  # it is ready if the brokers are
            admin = AdminClient(
                {
                    "bootstrap.servers": node.address,
                    "reconnect.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 50,
                    "log_level": 0,
                    **(self._security.client_options() if self._security is not None else {}),
                }
            )
            while not self._answers(admin, node):
                if not self.running(node.number):
                    raise self._ended(node)
                if time.monotonic() > deadline:
                    raise LockstepError(
                        f"node {node.number} of the broker did not answer within {READY_SECONDS:.0f} s",
                        hint=f"look into {node.log}; is the machine overloaded?",
                    )
                time.sleep(_POLL_SECONDS)

    def _answers(self, admin: AdminClient, node: Node) -> bool:
        # Asking a closed port costs librdkafka a back-off; a plain connection tells sooner.
        if is_free(node.port):
            return False
        expected = {number for number in self.nodes if self.running(number)}
        try:
            members = set(admin.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False
        return expected <= members

    def _ended(self, node: Node) -> LockstepError:
        code = self._processes[node.number].poll()
        said = kraft.log_tail(node)
        return LockstepError(
            f"node {node.number} of the broker ended (exit code {code})" + (f": {said}" if said else ""),
            hint=f"look into {node.log}; common causes: a full or read-only disk, a taken port, no memory",
        )

    def _take_folder(self) -> None:
        lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            owner = self._read_record().get("owner", "unknown")
            raise LockstepError(
                f"another broker (process {owner}) is running in {self.folder}",
                hint="use that one, stop it, or choose another folder with --folder",
            ) from None
        self._lock = lock

    def _await_predecessor(self, stored: dict[str, Any]) -> None:
        """Nodes of a broker whose process was killed get their SIGKILL from the kernel, maybe just now."""
        if stored and stored.get("nodes") != self._count:
            raise UsageError(
                f"{self.folder} holds a broker of {stored.get('nodes')} node(s), not {self._count}",
                hint="give the same --nodes, or choose another folder with --folder",
            )
        for pid in stored.get("pids", []):
            if _runs_in(pid, self.folder) and not process.wait_gone(pid, 5.0):
                raise LockstepError(
                    f"a node of an earlier broker (process {pid}) still runs in {self.folder}",
                    hint=f"end it: kill {pid}",
                )

    def _record(self) -> None:
        record = {
            "owner": os.getpid(),
            "nodes": self._count,
            "ports": [(node.port, node.controller_port) for node in self._nodes],
            "pids": [running.pid for running in self._processes.values()],
        }
        unfinished = self.folder / "broker.json.unfinished"
        unfinished.write_text(json.dumps(record))
        unfinished.rename(self.folder / "broker.json")

    def _read_record(self) -> dict[str, Any]:
        try:
            record = json.loads((self.folder / "broker.json").read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            logger.warning("%s is damaged: ports are chosen anew", self.folder / "broker.json")
            return {}
        return record if isinstance(record, dict) else {}


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LockstepError(
            f"cannot keep a broker in {folder}: {error.strerror or error}",
            hint="choose a folder on a disk that is writable and has space, with --folder",
        ) from error


def _port_lost(node: Node) -> bool:
    return not (is_free(node.port) and is_free(node.controller_port))


def _runs_in(pid: int, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
