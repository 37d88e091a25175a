"""A client gets its replies, whatever happens to the connection in between."""

import asyncio
import time
from pathlib import Path

import pytest

from lockstep.errors import LockstepError, UsageError
from lockstep.protocol.client import Client
from lockstep.protocol.frames import Address, Limits
from lockstep.protocol.host import Host
from lockstep.protocol.machine import Reply
from protocol.machines import Add, Recorder, Say, Sum
from protocol.running import cluster, run, until

NOBODY = Address("127.0.0.1", 1)


def test_many_commands_over_one_connection(tmp_path: Path) -> None:
    async def test() -> None:
        a = Host(Sum(), node="a", folder=tmp_path)
        async with cluster(a), Client(Sum, [a.address]) as client:
            totals = await asyncio.gather(*(client.command(Add(2)) for _ in range(1000)))
            assert totals == list(range(2, 2002, 2))

    run(test())


def test_replies_go_to_the_client_that_asked(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Recorder(lambda kind, *of: [Reply(*of[:2], of[2].text)] if kind == "command" else ())
        a = Host(machine, node="a")
        async with cluster(a), Client(Recorder, [a.address]) as one, Client(Recorder, [a.address]) as two:
            got = await asyncio.gather(one.command(Say("1")), two.command(Say("2")), a.command(Say("3")))
            assert got == ["1", "2", "3"]
            assert len({client for client, *_ in machine.of("command")}) == 3

    run(test())


def test_a_client_goes_on_to_a_node_that_answers(tmp_path: Path) -> None:
    async def test() -> None:
        a = Host(Sum(), node="a", folder=tmp_path)
        async with cluster(a), Client(Sum, [NOBODY, a.address]) as client:
            assert await client.command(Add(1)) == 1

    run(test())


def test_an_unanswered_command_is_sent_again_under_its_number_after_a_restart() -> None:
    async def test() -> None:
        silent = Recorder()
        a = Host(silent, node="a")
        await a.start()
        where = a.address
        async with Client(Recorder, [where], client="me") as client:
            waiting = asyncio.ensure_future(client.command(Add(7)))
            await until(lambda: silent.of("command"))
            await a.stop()
            talking = Recorder(lambda kind, *of: [Reply(*of[:2], "done")] if kind == "command" else ())
            again = Host(talking, node="a", listen=where)
            await again.start()
            assert await waiting == "done"
            assert silent.of("command") == talking.of("command") == [("me", 1, Add(7))]
            await again.stop()

    run(test())


def test_a_command_without_a_reply_times_out_with_the_reason() -> None:
    async def test() -> None:
        async with Client(Sum, [NOBODY]) as client:
            began = time.monotonic()
            with pytest.raises(LockstepError, match="Connection refused") as told:
                await client.command(Add(1), timeout=0.3)
            assert time.monotonic() - began < 2 and "may have been carried out" in told.value.hint

    run(test())


def test_a_client_of_another_protocol_is_told_so() -> None:
    async def test() -> None:
        a = Host(Recorder(), node="a")
        async with cluster(a), Client(Sum, [a.address]) as client:
            with pytest.raises(LockstepError, match="this node speaks recorder version 1"):
                await client.command(Add(1), timeout=0.45)

    run(test())


def test_a_command_that_the_machine_does_not_have_closes_the_connection_only(tmp_path: Path) -> None:
    async def test() -> None:
        a = Host(Sum(), node="a", folder=tmp_path)
        async with cluster(a):
            async with Client(Sum, [a.address]) as client:
                with pytest.raises(LockstepError):
                    await client.command(Say("what?"), timeout=0.3)
            async with Client(Sum, [a.address]) as client:
                assert await client.command(Add(1)) == 1

    run(test())


def test_clients_are_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        a = Host(Sum(), node="a", folder=tmp_path, limits=Limits(clients=1))
        async with cluster(a), Client(Sum, [a.address]) as one:
            assert await one.command(Add(1)) == 1
            async with Client(Sum, [a.address]) as two:
                with pytest.raises(LockstepError, match="1 clients are connected already"):
                    await two.command(Add(1), timeout=0.45)
            assert await one.command(Add(1)) == 2

    run(test())


def test_a_client_follows_the_node_that_it_is_told_to_prefer(tmp_path: Path) -> None:
    async def test() -> None:
        one, two = Sum(), Sum()
        a = Host(one, node="a", folder=tmp_path / "a")
        b = Host(two, node="b", folder=tmp_path / "b")
        async with cluster(a, b), Client(Sum, [a.address, b.address]) as client:
            await client.command(Add(1))
            client.prefer(b.address)
            await client.command(Add(1))
            assert (one.given, two.given) == (1, 1)

    run(test())


def test_mistakes_are_told_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="at least one node"):
        Client(Sum, [])

    async def test() -> None:
        with pytest.raises(UsageError, match="not open"):
            await Client(Sum, [NOBODY]).command(Add(1))
        async with Client(Sum, [NOBODY]) as client:
            with pytest.raises(UsageError, match="exceeds"):
                await client.command(Say("", b"x" * 2**20))

    run(test())
