"""The servers' network: who is let in, who is not, and what happens to bytes of nobody."""

import asyncio
import random
from collections.abc import Callable

import pytest

from lockstep.coordination.network import Network
from lockstep.coordination.zab.messages import CnxReady, FollowerInfo, Quorum
from lockstep.protocol.frames import Address


class Peer:
    """A network that notes what it is told."""

    def __init__(self, me: int, table: dict[int, Address], **options: object) -> None:
        self.up: list[tuple[int, str, bool]] = []
        self.messages: list[tuple[int, object]] = []
        self.network = Network(
            me,
            table,
            ensemble=str(options.pop("ensemble", "e")),
            incarnation=int(options.pop("incarnation", me)),  # type: ignore[call-overload]
            on_message=lambda peer, message: self.messages.append((peer, message)),
            on_peer=lambda peer, channel, up: self.up.append((peer, channel, up)),
            **options,  # type: ignore[arg-type]
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def pair(first: dict[str, object], second: dict[str, object]) -> tuple[Peer, Peer]:
    """Servers 1 and 2; 1 dials."""
    table: dict[int, Address] = {}
    two = Peer(2, table, **second)
    address = await two.network.open(Address("127.0.0.1", 0))
    two.network._peers[1] = Address("127.0.0.1", 1)
    one = Peer(1, {2: address}, **first)
    one.network.start()
    return one, two


def close(*peers: Peer) -> None:
    for peer in peers:
        peer.network.close()


def test_the_mesh_comes_up_and_carries_messages_both_ways() -> None:
    async def run() -> None:
        one, two = await pair({"secret": b"s" * 16}, {"secret": b"s" * 16})
        await until(lambda: (2, "election", True) in one.up and (1, "election", True) in two.up)
        one.network.send(2, CnxReady(7), "election", opens=False)
        two.network.send(1, CnxReady(8), "election", opens=False)
        await until(lambda: bool(one.messages and two.messages))
        assert (one.messages, two.messages) == ([(2, CnxReady(8))], [(1, CnxReady(7))])
        close(one, two)

    asyncio.run(run())


def test_a_quorum_connection_is_opened_by_the_message_that_asks_for_it_and_closed_alone() -> None:
    async def run() -> None:
        one, two = await pair({}, {})
        await until(lambda: (2, "election", True) in one.up)
        dropped = Quorum(1, 0, FollowerInfo(0, True))
        two.network.send(1, dropped, "quorum", opens=False)
        one.network.send(2, dropped, "quorum", opens=True)
        await until(lambda: (1, dropped) in two.messages)
        assert not one.messages, "without a quorum connection a quorum message is lost"
        two.network.close_quorum(1)
        await until(lambda: (2, "quorum", False) in one.up)
        assert (2, "election", False) not in one.up
        close(one, two)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"ensemble": "a"}, {"ensemble": "b"}, "another ensemble"),
        ({"secret": b"a" * 16}, {"secret": b"b" * 16}, "secret"),
    ],
)
def test_strangers_stay_outside(first: dict[str, object], second: dict[str, object], reason: str) -> None:
    async def run() -> None:
        one, two = await pair(dict(first), dict(second))
        await until(lambda: reason in one.network.denials.get(2, ""))
        assert not one.up
        assert not two.up
        close(one, two)

    asyncio.run(run())


def test_a_second_server_with_one_id_is_refused_while_the_first_lives() -> None:
    async def run() -> None:
        one, two = await pair({"incarnation": 1}, {})
        await until(lambda: (1, "election", True) in two.up)
        double = Peer(1, dict(one.network._peers), incarnation=2)
        double.network.start()
        await until(lambda: "two servers have one id" in double.network.denials.get(2, ""))
        assert two.up == [(1, "election", True)], "the first is not disturbed"
        one.network.close()
        await until(lambda: two.up[-1] == (1, "election", True) and len(two.up) == 3)
        close(double, two)

    asyncio.run(run())


def test_no_byte_sequence_harms_the_port_for_servers() -> None:
    async def run() -> None:
        chance = random.Random(3)
        one, two = await pair({}, {})
        await until(lambda: (1, "election", True) in two.up)
        address = one.network._peers[2]
        for _ in range(200):
            _, writer = await asyncio.open_connection(*address)
            body = chance.randbytes(chance.randrange(1, 200))
            if chance.random() < 0.7:
                body = len(body).to_bytes(4, "little") + body
            writer.write(body)
            writer.close()
        one.network.send(2, CnxReady(7), "election", opens=False)
        await until(lambda: (1, CnxReady(7)) in two.messages)
        assert two.up == [(1, "election", True)]
        close(one, two)

    asyncio.run(run())
