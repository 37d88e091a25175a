"""Our own ensemble as processes: what was acknowledged survives, bad input is told."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.coordination import membership
from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import Ensemble, ask
from lockstep.coordination.errors import ConnectionLoss, NodeExists
from lockstep.coordination.states import State

pytestmark = pytest.mark.real


def test_nothing_acknowledged_is_lost_when_every_server_is_killed(tmp_path: Path) -> None:
    chance = random.Random(11)

    async def run() -> None:
        with Ensemble(tmp_path, tick_ms=500, options=["--snapshot-every", "200"]) as ensemble:
            acknowledged: list[str] = []
            for round_number in range(3):
                async with Client(ensemble.connect_string, timeout=5) as client:
                    if round_number == 0:
                        await client.create("/all")

                    async def write(number: int, client: Client = client, base: int = round_number) -> None:
                        path = f"/all/{base}-{number}"
                        try:
                            await client.create(path, b"x" * 100)
                        except (ConnectionLoss, NodeExists):
                            return
                        acknowledged.append(path)

                    tasks = [asyncio.create_task(write(number)) for number in range(400)]
                    enough = chance.randrange(100, 300)
                    before = len(acknowledged)
                    while len(acknowledged) - before < enough:
                        await asyncio.sleep(0.001)
                    for server in list(ensemble.running):
                        ensemble.kill(server)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    client.abort()
                for server in ensemble.members:
                    ensemble.start_server(server)
                ensemble.wait_leader()
            async with Client(ensemble.connect_string, timeout=5) as client:
                await client.sync()
                there = {f"/all/{name}" for name in await client.children("/all")}
                assert set(acknowledged) <= there
                assert len(acknowledged) >= 300

    asyncio.run(run())


def test_a_server_that_lost_its_disk_gets_everything_back(tmp_path: Path) -> None:
    async def run() -> None:
        with Ensemble(tmp_path, tick_ms=500, options=["--snapshot-every", "100"]) as ensemble:
            follower = next(s for s in ensemble.running if s != ensemble.wait_leader())
            others = ",".join(str(m.client) for s, m in ensemble.members.items() if s != follower)
            async with Client(others) as client:
                await client.create("/all")
                for number in range(150):
                    await client.create(f"/all/{number}")
                ensemble.kill(follower)
                subprocess.run(["rm", "-r", str(tmp_path / str(follower))], check=True)
                for number in range(150, 3000):
                    await client.create(f"/all/{number}")
                ensemble.start_server(follower)
                ensemble.wait_serving(follower)
            async with Client(str(ensemble.members[follower].client)) as client:
                await client.sync()
                assert len(await client.children("/all")) == 3000

    asyncio.run(run())


def test_a_session_moves_to_a_survivor_and_keeps_its_ephemerals_and_watches(ensemble: Ensemble) -> None:
    async def run() -> None:
        events: list[str] = []
        states: list[State] = []
        async with (
            Client(ensemble.connect_string, timeout=5, on_state=states.append) as client,
            Client(ensemble.connect_string, timeout=5) as other,
        ):
            await client.create("/mine", ephemeral=True)
            await client.create("/watched")
            await client.get("/watched", watch=lambda event: events.append(event.type.name))
            session = client.session
            victim = next(i for i, m in ensemble.members.items() if str(m.client) == client.server)
            ensemble.kill(victim)
            deadline = time.monotonic() + 10
            while not events:
                try:
                    await other.set("/watched", b"x")
                except ConnectionLoss:
                    continue
                await asyncio.sleep(0.01)
                assert time.monotonic() < deadline
            assert await client.exists("/mine") is not None
            assert client.session == session
            assert states == [State.CONNECTED, State.SUSPENDED, State.CONNECTED]

    asyncio.run(run())


def test_a_stopped_leader_is_replaced_and_comes_back_as_a_follower(ensemble: Ensemble) -> None:
    """SIGSTOP: nothing closes, only silence tells."""

    async def run() -> None:
        leader = ensemble.wait_leader()
        others = ",".join(str(m.client) for i, m in ensemble.members.items() if i != leader)
        async with Client(others, timeout=5) as client:
            await client.create("/a")
            os.kill(ensemble.pid(leader), signal.SIGSTOP)
            started = time.monotonic()
            try:
                await client.set("/a", b"after")
            finally:
                took = time.monotonic() - started
                os.kill(ensemble.pid(leader), signal.SIGCONT)
            assert took < 2.0, f"{took:.3f} s"
            ensemble.wait_serving(leader)
            await client.sync()
        async with Client(str(ensemble.members[leader].client), timeout=5) as client:
            await client.sync()
            assert (await client.get("/a"))[0] == b"after"

    asyncio.run(run())


def test_the_largest_requests_happen_once_each_and_larger_ones_are_refused(ensemble: Ensemble) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string, timeout=5) as client:
            await client.create("/a")
            await asyncio.gather(*(client.set("/a", bytes(1_000_000)) for _ in range(40)))
            with pytest.raises(ConnectionLoss):
                await client.set("/a", bytes(1_100_000))
            data, stat = await client.get("/a")
            assert (len(data), stat.version) == (1_000_000, 40)

    asyncio.run(run())


def test_four_letter_words_are_answered(ensemble: Ensemble) -> None:
    leader = ensemble.wait_leader()
    address = ensemble.members[leader].client
    assert ask(*address, "ruok") == "imok"
    assert "Mode: leader" in ask(*address, "srvr")
    assert "Mode: leader" in ask(*address, "stat")
    assert "zk_server_state\tleader" in ask(*address, "mntr")
    assert ask(*address, "isro") == "rw"
    assert "tickTime=500" in ask(*address, "conf")
    assert "zookeeper.version" in ask(*address, "envi")
    assert ask(*address, "cons") != ""


def test_wrong_lists_and_folders_are_refused_with_an_explanation(ensemble: Ensemble, tmp_path: Path) -> None:
    servers = membership.format_list(ensemble.members)
    serve = [sys.executable, "-m", "lockstep", "coord", "serve"]
    for arguments, message in (
        (["--id", "9", "--servers", servers, "--data", str(tmp_path / "x")], "there is no server 9"),
        (["--id", "1", "--servers", "nonsense", "--data", str(tmp_path / "x")], "is not a server"),
        (
            ["--id", "2", "--servers", servers, "--data", str(tmp_path / "ensemble" / "1")],
            "belongs to server 1",
        ),
        (
            ["--id", "1", "--servers", servers, "--data", str(tmp_path / "ensemble" / "1")],
            "in use by another",
        ),
        (["--id", "1", "--servers", servers, "--data", str(tmp_path / "y")], "cannot listen"),
    ):
        done = subprocess.run([*serve, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode in (1, 2), done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_the_shell_status_and_dump_commands(ensemble: Ensemble, tmp_path: Path) -> None:
    def lockstep(*arguments: str) -> str:
        command = [sys.executable, "-m", "lockstep", "coord", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "/shell" in lockstep("shell", ensemble.connect_string, "-c", "create /shell hello")
    assert "hello" in lockstep("shell", ensemble.connect_string, "-c", "get /shell")
    assert "leader" in lockstep("status", ensemble.connect_string)
    dumped = lockstep("dump", str(tmp_path / "ensemble" / str(ensemble.wait_leader())))
    assert "Created(path='/shell'" in dumped
    assert "password=b'...'" in dumped
