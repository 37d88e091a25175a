"""Peers find each other, notice each other's death, and survive whatever bytes arrive."""

import asyncio
import logging
import os
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.protocol import frames
from lockstep.protocol.frames import Address, Connection, Hello, Limits, Refused
from lockstep.protocol.host import HaltedError, Host
from lockstep.protocol.machine import Reply, Send
from protocol.machines import Add, Number, Recorder, Say, Shouter
from protocol.running import cluster, run, until

ANYWHERE = Address("127.0.0.1", 1)


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def hello(sender: str = "a", protocol: str = "recorder", version: int = 1, to: str = "b") -> bytes:
    return frame(msgspec.msgpack.encode(Hello(sender, protocol, version, to)))


def message(of: object) -> bytes:
    return frame(msgspec.msgpack.encode(of))


def test_messages_arrive_in_order_whatever_their_size() -> None:
    async def test() -> None:
        machine = Recorder()
        a, b = Host(Shouter("b"), node="a"), Host(machine, node="b")
        async with cluster(a, b):
            sizes = [0, 1, 65_530, 65_536, 3_000_000, 5, 200_000, 0, 8_000_000, 17] + [3] * 5_000
            for size in sizes:
                a.submit(Say(str(size), b"x" * size))
            await until(lambda: len(machine.of("message")) == len(sizes))
            got = machine.of("message")
            assert [one[1].text for one in got] == [str(size) for size in sizes]
            assert all(len(one[1].body) == size for one, size in zip(got, sizes, strict=True))

    run(test())


def test_both_directions_share_one_connection() -> None:
    async def test() -> None:
        one = Recorder(lambda kind, *_: [Send("b", Say("hi"))] if kind == "peer" else ())
        two = Recorder(lambda kind, *of: [Send("a", of[1])] if kind == "message" else ())
        a, b = Host(one, node="a"), Host(two, node="b")
        async with cluster(a, b):
            await until(lambda: one.of("message"))
            assert one.of("message") == [("b", Say("hi"))]
            assert one.of("peer") == [("b", True)] and two.of("peer") == [("a", True)]

    run(test())


def test_a_node_sends_to_itself() -> None:
    async def test() -> None:
        machine = Recorder(
            lambda kind, *of: [Send("a", Say("to me")), Send("a", Say("too"))] * (kind == "start")
        )
        a = Host(machine, node="a")
        async with cluster(a):
            await until(lambda: len(machine.of("message")) == 2)
            assert machine.of("message") == [("a", Say("to me")), ("a", Say("too"))]

    run(test())


def test_a_killed_process_is_noticed_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Recorder()
        survivor = Host(machine, node="a")
        await survivor.start()
        script = (
            "import pathlib, sys; sys.path.insert(0, sys.argv[1])\n"
            "from lockstep.protocol.host import Host, serve\n"
            "from lockstep.protocol.frames import Address\n"
            "from protocol.machines import Recorder\n"
            "def ready(host): pathlib.Path(sys.argv[3]).write_text(str(host.address.port) + chr(10))\n"
            "serve(lambda: Host(Recorder(), node='b', peers={'a': Address('127.0.0.1', int(sys.argv[2]))}), "
            "ready=ready)\n"
        )
        told = tmp_path / "port"
        tests = str(Path(__file__).resolve().parents[1])
        command = [sys.executable, "-c", script, tests, str(survivor.address.port), str(told)]
        for round_ in range(1, 3):
            told.unlink(missing_ok=True)
            victim = process.launch(command, log=tmp_path / "log")
            try:
                await until(lambda: told.exists() and told.read_text().endswith("\n"), deadline=20)
                survivor.set_peers({"b": Address("127.0.0.1", int(told.read_text()))})
                await until(lambda: survivor.up == {"b"})
                killed = time.monotonic()
                os.kill(victim.pid, signal.SIGKILL)
                await until(lambda: len(machine.of("peer")) == 2 * round_)  # noqa: B023
                assert time.monotonic() - killed < 2.0
                assert machine.of("peer")[-2:] == [("b", True), ("b", False)]
            finally:
                process.kill(victim)
        await survivor.stop()

    run(test())


def test_peers_reconnect_after_one_of_them_restarts() -> None:
    async def test() -> None:
        machine = Recorder()
        a, b = Host(machine, node="a"), Host(Recorder(), node="b")
        async with cluster(a, b) as peers:
            for _ in range(3):
                await b.stop()
                await until(lambda: not a.up)
                b = Host(Recorder(), node="b", listen=peers["b"], peers=peers)
                await b.start()
                began = time.monotonic()
                await until(lambda: a.up)
                assert time.monotonic() - began < 2.0
            await b.stop()
        assert [up for _, up in machine.of("peer")][:7] == [True, False, True, False, True, False, True]

    run(test())


def test_a_peer_that_comes_back_before_its_death_was_noticed_replaces_its_connection() -> None:
    async def test() -> None:
        machine = Recorder()
        b = Host(machine, node="b", peers={"a": ANYWHERE})
        await b.start()
        first = await asyncio.open_connection(*b.address)
        first[1].write(hello() + message(Number(1)))
        await until(lambda: machine.of("message"))
        second = await asyncio.open_connection(*b.address)
        second[1].write(hello() + message(Number(2)))
        await until(lambda: len(machine.of("message")) == 2)
        assert machine.of("peer") == [("a", True), ("a", False), ("a", True)]
        with suppress(ConnectionResetError):
            await first[0].read()
        first[1].close()
        assert b.up == {"a"}
        second[1].close()
        await until(lambda: not b.up)
        await b.stop()

    run(test())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (hello(sender="stranger"), "no such peer"),
        (hello(protocol="other"), "speaks recorder version 1"),
        (hello(version=2), "speaks recorder version 1"),
        (hello(to="c"), "this is node b, not c"),
        (hello(sender=""), "an id has"),
        (hello(sender="x" * 300), "an id has"),
    ],
)
def test_a_stranger_is_refused_and_told_why(said: bytes, reason: str) -> None:
    async def test() -> None:
        machine = Recorder()
        b = Host(machine, node="b", peers={"a": ANYWHERE})
        await b.start()
        reader, writer = await asyncio.open_connection(*b.address)
        writer.write(said + message(Number(1)))
        answer = await reader.read()
        assert reason in msgspec.msgpack.decode(answer[4:], type=Refused).reason
        writer.close()
        assert machine.of("message") == machine.of("peer") == []
        await b.stop()

    run(test())


def test_a_stranger_that_stays_silent_is_dropped() -> None:
    async def test() -> None:
        b = Host(Recorder(), node="b", limits=Limits(hello_seconds=0.05))
        await b.start()
        reader, writer = await asyncio.open_connection(*b.address)
        assert await reader.read() == b""
        writer.close()
        await b.stop()

    run(test())


def test_strangers_are_bounded() -> None:
    async def test() -> None:
        b = Host(Recorder(), node="b", limits=Limits(strangers=3))
        await b.start()
        silent = [await asyncio.open_connection(*b.address) for _ in range(3)]
        await until(lambda: len(b._transport._strangers) == 3)
        reader, writer = await asyncio.open_connection(*b.address)
        assert await reader.read() == b""
        for _, one in (*silent, (reader, writer)):
            one.close()
        await until(lambda: not b._transport._strangers)
        await b.stop()

    run(test())


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (frame(b"\xc1"), "does not decode"),
        (frame(b""), "does not decode"),
        (message({"type": "unheard of"}), "does not decode"),
        (message({"type": "number", "number": "not a number"}), "does not decode"),
        (frame(b"\x91" * 100_000), "does not decode"),
        (message(Number(3))[:-1] + b"\xa1", "does not decode"),
        (struct.pack("<I", 2**32 - 1), "bytes, where"),
        (struct.pack("<I", 2**23 + 1), "bytes, where"),
    ],
)
def test_a_malformed_frame_closes_the_connection_and_nothing_else(
    bad: bytes, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("lockstep"), "propagate", True)

    async def test() -> None:
        machine = Recorder()
        b = Host(machine, node="b", peers={"a": ANYWHERE})
        await b.start()
        reader, writer = await asyncio.open_connection(*b.address)
        writer.write(hello() + message(Number(1)) + bad + message(Number(2)))
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        await until(lambda: len(machine.of("peer")) == 2)
        assert machine.of("peer") == [("a", True), ("a", False)]
        assert machine.of("message") == [("a", Number(1))]
        reader, writer = await asyncio.open_connection(*b.address)
        writer.write(hello() + message(Number(3)))
        await until(lambda: len(machine.of("message")) == 2)
        writer.close()
        await b.stop()

    run(test())
    assert reason in caplog.text


@settings(max_examples=40)
@given(garbage=st.binary(min_size=1, max_size=300), greeted=st.booleans())
def test_garbage_on_the_socket_never_ends_a_node(garbage: bytes, greeted: bool) -> None:
    async def test() -> None:
        machine = Recorder()
        b = Host(machine, node="b", peers={"a": ANYWHERE})
        await b.start()
        _, writer = await asyncio.open_connection(*b.address)
        writer.write((hello() if greeted else b"") + garbage)
        writer.write_eof()
        await until(lambda: len(machine.of("peer")) == 2 if greeted else not b._transport._strangers)
        writer.close()
        _, writer = await asyncio.open_connection(*b.address)
        writer.write(hello() + message(Number(3)))
        await until(lambda: ("a", Number(3)) in machine.of("message"))
        writer.close()
        await b.stop()

    run(test())


@settings(max_examples=100)
@given(
    payloads=st.lists(st.binary(max_size=300), max_size=20),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=50),
)
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    async def test() -> None:
        got: list[bytes] = []
        connection = Connection(
            lambda _, payload: got.append(payload), lambda *_: None, max_frame=400, max_queue=1
        )
        data = b"".join(map(frame, payloads))
        turn = 0
        while data:
            space = connection.get_buffer(-1)
            size = min(cuts[turn % len(cuts)], len(data), len(space))
            assert size > 0, "a buffer without room would stop the connection for ever"
            space[:size] = data[:size]
            connection.buffer_updated(size)
            data = data[size:]
            turn += 1
        assert got == payloads

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_READ_BYTES", 64)
        run(test())


def test_a_peer_that_does_not_read_is_dropped_before_memory_fills() -> None:
    async def test() -> None:
        machine = Recorder(lambda kind, *of: [Send("a", of[2])] if kind == "command" else ())
        b = Host(machine, node="b", peers={"a": ANYWHERE}, limits=Limits(queue=2**20))
        await b.start()
        _, writer = await asyncio.open_connection(*b.address, limit=1000)
        writer.write(hello())
        await until(lambda: b.up)
        writer.transport.pause_reading()
        sent = 0
        while b.up:
            assert sent < 1000, "the queue has no bound"
            b.submit(Say("", b"x" * 100_000))
            sent += 1
            await asyncio.sleep(0)
        assert machine.of("peer") == [("a", True), ("a", False)]
        writer.close()
        await b.stop()

    run(test())


def test_a_paused_node_reads_nothing_until_it_resumes() -> None:
    async def test() -> None:
        machine = Recorder()
        a, b = Host(Shouter("b"), node="a"), Host(machine, node="b")
        async with cluster(a, b):
            b._transport.pause(True)
            for number in range(100):
                await a.command(Say(str(number)))
            await asyncio.sleep(0.02)
            assert machine.of("message") == []
            b._transport.pause(False)
            await until(lambda: len(machine.of("message")) == 100)

    run(test())


def test_a_message_that_no_peer_would_take_ends_the_sender_with_a_clear_error() -> None:
    async def test() -> None:
        a, b = Host(Shouter("b"), node="a", limits=Limits(frame=1000)), Host(Recorder(), node="b")
        async with cluster(a, b):
            with pytest.raises(HaltedError, match=r"a Say of \d+ bytes exceeds 1000"):
                await a.command(Say("", b"x" * 1000))

    run(test())


def test_a_message_without_a_connection_is_lost_and_counted() -> None:
    async def test() -> None:
        a = Host(Shouter("b"), node="a", peers={"b": ANYWHERE})
        await a.start()
        await a.command(Say("hello?"))
        assert a.lost_sends == 1
        await a.stop()

    run(test())


def test_an_occupied_port_is_told() -> None:
    async def test() -> None:
        a = Host(Recorder(), node="a")
        await a.start()
        with pytest.raises(LockstepError, match="cannot listen on") as told:
            await Host(Recorder(), node="b", listen=a.address).start()
        assert "port" in told.value.hint
        await a.stop()

    run(test())


def test_a_removed_peer_is_disconnected_and_refused() -> None:
    async def test() -> None:
        machine = Recorder(lambda kind, *of: [Reply(*of[:2], None)] if kind == "command" else ())
        a, b = Host(machine, node="a"), Host(Recorder(), node="b")
        async with cluster(a, b) as peers:
            b.set_peers({})
            await until(lambda: not a.up and not b.up)
            assert await a.command(Add(1)) is None
            b.set_peers(peers)
            await until(lambda: a.up and b.up)

    run(test())
