"""An ensemble on this machine, each server a process: what commands start when no ensemble is given, and what
experiments and tests kill.

    with Ensemble(folder) as ensemble:
        client = Client(ensemble.connect_string)
"""

import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Self

from lockstep import process
from lockstep.coordination import membership
from lockstep.coordination.membership import Member
from lockstep.errors import LockstepError
from lockstep.ports import free_ports

START_SECONDS = 20.0


class Ensemble:
    """`servers` processes with data below `folder`. They die with this process."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: int = 3,
        tick_ms: int = 200,
        variant: str = "rtzk",
        options: Sequence[str] = (),
    ) -> None:
        """`options` are further options of `lockstep coord serve`, the same for every server."""
        self.folder = folder
        self._options = ["--tick", str(tick_ms), "--variant", variant, *options]
        ports = iter(free_ports(2 * servers))
        self.members = {i: Member("127.0.0.1", next(ports), next(ports)) for i in range(1, servers + 1)}
        self._processes: dict[int, Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def connect_string(self) -> str:
        return ",".join(str(member.client) for member in self.members.values())

    def start(self) -> None:
        """Start every server and wait until there is a leader."""
        try:
            for server in self.members:
                self.start_server(server)
            self.wait_leader()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for running in self._processes.values():
            running.terminate()
        for running in self._processes.values():
            process.stop(running, grace=3.0)
        self._processes.clear()

    def start_server(self, server: int) -> None:
        command = [sys.executable, "-m", "lockstep", "coord", "serve", "--id", str(server)]
        command += ["--servers", membership.format_list(self.members)]
        command += ["--data", str(self.folder / str(server)), *self._options]
        self._processes[server] = process.launch(command, log=self.folder / f"server-{server}.log")

    def kill(self, server: int) -> None:
        """kill -9."""
        process.kill(self._processes.pop(server))

    def pid(self, server: int) -> int:
        return self._processes[server].pid

    @property
    def running(self) -> list[int]:
        return sorted(server for server, running in self._processes.items() if running.poll() is None)

    def leader(self) -> int | None:
        """The server that says it leads, or None."""
        for server in self.running:
            if self.figures(server).get("zk_server_state") in ("leader", "standalone"):
                return server
        return None

    def figures(self, server: int) -> dict[str, str]:
        """What the server answers to `mntr`; empty if it does not."""
        answer = ask(*self.members[server].client, "mntr")
        return dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)

    def wait_leader(self, seconds: float = START_SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            leader = self.leader()
            if leader is not None:
                return leader
            dead = [server for server, running in self._processes.items() if running.poll() is not None]
            if len(dead) > len(self.members) // 2:
                raise LockstepError(f"servers {dead} ended", hint=f"their logs are in {self.folder}")
            time.sleep(0.02)
        raise LockstepError(
            f"no leader after {seconds:.0f} s", hint=f"the servers' logs are in {self.folder}"
        )

    def wait_serving(self, server: int, seconds: float = START_SECONDS) -> None:
        """Wait until this server follows or leads."""
        deadline = time.monotonic() + seconds
        while self.figures(server).get("zk_server_state", "looking") == "looking":
            if time.monotonic() > deadline:
                raise LockstepError(f"server {server} does not serve", hint=f"its log is in {self.folder}")
            time.sleep(0.02)


def ask(host: str, port: int, word: str, timeout: float = 1.0) -> str:
    """A server's answer to a four-letter word; empty if there is none."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as sock:
            sock.settimeout(timeout)
            sock.sendall(word.encode())
            answer = b""
            while part := sock.recv(65536):
                answer += part
    except OSError:
        return ""
    return answer.decode(errors="replace")
