"""The embedded broker starts, keeps its data, says what is wrong, and leaves nothing behind."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from contract import entries, take, values

from lockstep import process
from lockstep.errors import LockstepError, UsageError
from lockstep.log import broker as broker_module
from lockstep.log.broker import Broker
from lockstep.log.errors import UnknownTopic
from lockstep.log.kafka import KafkaLog

pytestmark = pytest.mark.real


def append(broker: Broker, *texts: str) -> list[int]:
    async def go() -> list[int]:
        async with asyncio.timeout(90), KafkaLog(broker.bootstrap_servers, request_seconds=60) as log:
            try:
                await log.partitions("t")
            except UnknownTopic:
                await log.create_topic("t")
            return await log.append_batch("t", 0, entries(*texts))

    return asyncio.run(go())


def read_all(broker: Broker, count: int) -> list[str]:
    async def go() -> list[str]:
        async with asyncio.timeout(90), KafkaLog(broker.bootstrap_servers) as log, log.reader() as reader:
            await reader.subscribe("t", 0, 0)
            return values(await take(reader, count))

    return asyncio.run(go())


def test_data_and_ports_survive_a_restart_and_the_folder_belongs_to_one(tmp_path: Path) -> None:
    with Broker(tmp_path) as first:
        servers = first.bootstrap_servers
        append(first, "a", "b")
        with pytest.raises(LockstepError, match=f"process {os.getpid()}"):
            Broker(tmp_path).start()
        pid = first.pid()
    assert not process.alive(pid)
    with pytest.raises(UsageError, match="holds a broker of 1"):
        Broker(tmp_path, nodes=3).start()
    with Broker(tmp_path) as again:
        assert again.bootstrap_servers == servers
        assert append(again, "c") == [2]
        again.kill()
        assert not again.running()
        with pytest.raises(LockstepError, match="ended"):
            again.check()
        again.restart()
        again.check()
        assert read_all(again, 3) == ["a", "b", "c"]


def test_nothing_outlives_a_parent_that_is_killed_and_the_folder_is_free_again(tmp_path: Path) -> None:
    script = (
        "import pathlib, signal, sys; from lockstep.log.broker import Broker\n"
        "broker = Broker(pathlib.Path(sys.argv[1])).start()\n"
        "print(broker.pid(), flush=True); signal.pause()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    node = int(parent.stdout.readline())
    assert process.alive(node)
    parent.kill()
    parent.wait()
    with Broker(tmp_path) as successor:
        assert not process.alive(node)
        assert append(successor, "a") == [0]


@pytest.mark.parametrize("own_controller", [False, True])
def test_three_nodes_go_on_without_one_of_them(tmp_path: Path, own_controller: bool) -> None:
    settings = {"broker.session.timeout.ms": "1000"}
    with Broker(tmp_path, nodes=3, heap_mb=192, settings=settings, own_controller=own_controller) as cluster:
        assert len(cluster.bootstrap_servers.split(",")) == 3
        append(cluster, *(f"a{i}" for i in range(100)))
        cluster.kill(2)
        append(cluster, *(f"b{i}" for i in range(100)))
        cluster.restart(2)
        append(cluster, *(f"c{i}" for i in range(100)))
        assert read_all(cluster, 300) == [f"{part}{i}" for part in "abc" for i in range(100)]


def test_an_occupied_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LockstepError, match=f"port {port} is already in use"):
            Broker(tmp_path, port=port).start()


@pytest.mark.parametrize(("nodes", "port"), [(2, 0), (0, 0), (1, 70_000), (1, -1)])
def test_impossible_wishes_are_refused_before_anything_starts(tmp_path: Path, nodes: int, port: int) -> None:
    with pytest.raises(UsageError):
        Broker(tmp_path, nodes=nodes, port=port)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LockstepError, match="cannot keep a broker in"):
        Broker(tmp_path / "file" / "below").start()
    with pytest.raises(LockstepError, match="cannot keep a broker in"):
        Broker(Path("/proc/lockstep")).start()


def test_a_disk_without_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "LEAST_FREE_MB", 1 << 40)
    with pytest.raises(LockstepError, match="MB are free"):
        Broker(tmp_path).start()
    monkeypatch.undo()
    with (tmp_path / "lock").open("a") as lock:  # the failed start gave the folder back
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_command_prints_the_servers_and_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstep", "broker", "--folder", str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    host, _, port = running.stdout.readline().strip().partition(":")
    assert host == "127.0.0.1"
    socket.create_connection((host, int(port)), 5).close()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 0, errors
    deadline = time.monotonic() + 10
    while listening(int(port)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_command_says_what_is_wrong_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstep", "broker", "--folder", str(tmp_path)]
    wrong = subprocess.run([*command, "--nodes", "2"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("lockstep: a broker has 1 or 3 nodes")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        failed = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1
    assert f"port {port} is already in use" in failed.stderr
    assert "Traceback" not in failed.stderr


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
