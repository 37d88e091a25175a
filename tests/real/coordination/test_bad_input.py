"""What goes wrong in the field: a wrong list, a full disk. A clear word, and nothing lost."""

import asyncio
import re
import sys
import time
import urllib.request
from pathlib import Path
from subprocess import Popen

import pytest

from lockstep import process
from lockstep.coordination import membership
from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import Ensemble
from lockstep.coordination.membership import Member
from lockstep.ports import free_ports

pytestmark = pytest.mark.real

ELSEWHERE = Path(__file__).with_name("elsewhere.py")


def wait_for_text(path: Path, text: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no log"
        time.sleep(0.02)


def serve(server: int, servers: str, data: Path, log: Path, *options: str) -> "Popen[bytes]":
    command = [sys.executable, "-m", "lockstep", "--debug", "coord", "serve", "--id", str(server)]
    return process.launch([*command, "--servers", servers, "--data", str(data), *options], log=log)


def test_a_server_with_another_list_is_told_and_changes_nothing(ensemble: Ensemble, tmp_path: Path) -> None:
    peer, client = free_ports(2)
    stray = min(ensemble.running)
    members = dict(ensemble.members) | {stray: Member("127.0.0.1", peer, client)}
    log = tmp_path / "stray.log"
    running = serve(stray, membership.format_list(members), tmp_path / "stray", log)
    try:
        wait_for_text(log, "belongs to another ensemble: compare the lists of servers")
    finally:
        process.kill(running)
    assert ensemble.leader() is not None


def test_a_second_server_with_one_id_on_this_machine_says_which_port_is_taken(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    servers, log = membership.format_list(ensemble.members), tmp_path / "second.log"
    second = serve(1, servers, tmp_path / "second", log)
    try:
        assert second.wait(15) == 1
    finally:
        process.kill(second)
    assert f"cannot listen for the others on {ensemble.members[1].peer}" in log.read_text()


def test_a_second_server_with_one_id_on_another_machine_is_refused_and_changes_nothing(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string, timeout=5) as client:
            await client.create("/before", b"x")
            running = process.launch(command, log=log)
            try:
                await asyncio.to_thread(wait_for_text, log, "do two servers have one id?")
                await client.create("/beside", b"x")
            finally:
                process.kill(running)

    ensemble.wait_serving(1)
    before = (ensemble.leader(), ensemble.figures(1)["zk_epoch"])
    servers, log = membership.format_list(ensemble.members), tmp_path / "second.log"
    ports = [str(port) for port in free_ports(2)]
    command = [sys.executable, str(ELSEWHERE), "1", servers, str(tmp_path / "second"), *ports]
    asyncio.run(run())
    assert (ensemble.leader(), ensemble.figures(1)["zk_epoch"]) == before


def test_a_full_disk_ends_the_server_and_loses_nothing(tmp_path: Path) -> None:
    """The file size limit of a process stands for a full disk: writes fail in the middle."""

    async def run(ensemble: Ensemble, victim: int) -> None:
        others = ",".join(str(m.client) for s, m in ensemble.members.items() if s != victim)
        async with Client(others, timeout=5) as client:
            await client.create("/all")
            for number in range(120):
                await client.create(f"/all/{number}", b"x" * 2000)
            await client.sync()
            assert len(await client.children("/all")) == 120

    with Ensemble(tmp_path / "ensemble", tick_ms=500) as ensemble:
        victim = ensemble.wait_leader()
        ensemble.kill(victim)
        ensemble.wait_leader()
        command = f"ulimit -f 100; exec {sys.executable} -m lockstep coord serve --id {victim}"
        command += f" --servers {membership.format_list(ensemble.members)} --tick 500"
        command += f" --data {ensemble.folder / str(victim)}"
        log = tmp_path / "victim.log"
        limited = process.launch(["bash", "-c", command], log=log)
        try:
            ensemble._processes[victim] = limited
            ensemble.wait_serving(victim)
            asyncio.run(run(ensemble, victim))
            assert limited.wait(20) == 3, "it ends itself instead of lying"
            assert "cannot keep durable records" in log.read_text()
            assert "Traceback" not in log.read_text()
        finally:
            process.kill(limited)
        ensemble.start_server(victim)
        ensemble.wait_serving(victim)


def test_metrics_are_exposed(tmp_path: Path) -> None:
    peer, client, port = free_ports(3)
    servers = membership.format_list({1: Member("127.0.0.1", peer, client)})
    log = tmp_path / "log"
    running = serve(1, servers, tmp_path / "data", log, "--metrics", str(port))
    try:
        wait_for_text(log, "listens for clients")
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        assert re.search(r'lockstep_coordination_is_leader\{server="1"\} [01]\.0', text)
        assert 'lockstep_coordination_znodes{server="1"} 4.0' in text
    finally:
        process.stop(running)
