"""The promises that a host makes to its machine (numbers as in `lockstep.protocol.machine`)."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Entry
from lockstep.log.memory import MemoryLog
from lockstep.protocol import commit
from lockstep.protocol.host import HaltedError, Host
from lockstep.protocol.machine import (
    Append,
    CancelTimer,
    Compact,
    Deliver,
    Effects,
    Halt,
    Machine,
    Note,
    Persist,
    Reply,
    Send,
    SetTimer,
    Subscribe,
)
from lockstep.protocol.storage import CorruptHistoryError, History, StorageError
from protocol.machines import Add, Number, Recorder, Say, Sum
from protocol.running import cluster, run, until


def on_start(*effects: Any) -> Callable[..., Effects]:
    return lambda kind, *_: effects if kind == "start" else ()


def test_1_the_effects_of_an_input_start_before_the_next_input() -> None:
    order: list[Any] = []

    def effects(kind: str, *of: Any) -> Effects:
        order.append((kind, *of[1:]))
        if kind == "start":
            yield Send("a", Number(1))
            order.append("still in start")
            yield Deliver("x")

    async def test() -> None:
        a = Host(Recorder(effects), node="a", deliver=order.append)
        async with cluster(a):
            await until(lambda: len(order) == 4)
        assert order == [("start",), "still in start", "x", ("message", Number(1))]

    run(test())


def test_2_persists_and_compactions_are_confirmed_in_order_after_they_are_on_disk(tmp_path: Path) -> None:
    async def test() -> None:
        asked = [
            *(Persist(Number(n), n) for n in range(100)),
            Compact((Number(-1), Number(-2)), "compacted"),
            *(Persist(Number(n), n) for n in range(100, 150)),
        ]
        machine = Recorder(on_start(*asked))
        a = Host(machine, node="a", folder=tmp_path)
        async with cluster(a):
            assert machine.of("persisted") == [], "a confirmation must never come inside the input"
            await until(lambda: len(machine.of("persisted")) == 151)
            assert [token for (token,) in machine.of("persisted")] == [
                *range(100),
                "compacted",
                *range(100, 150),
            ]
            assert a._commit is not None and a._commit.commits == 3, "many records share an fsync"
        again = Recorder()
        async with cluster(Host(again, node="a", folder=tmp_path)):
            assert again.of("start") == [(Number(-1), Number(-2), *map(Number, range(100, 150)))]

    run(test())


def test_2_too_many_bytes_waiting_for_the_disk_pause_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MAX_WAITING", 1000)

    async def test() -> None:
        machine = Recorder(on_start(*(Persist(Number(n), n) for n in range(1000))))
        a = Host(machine, node="a", folder=tmp_path)
        paused: list[bool] = []
        pause = a._transport.pause
        a._transport.pause = lambda on: (paused.append(on), pause(on))[1]  # type: ignore[method-assign]
        async with cluster(a):
            await until(lambda: len(machine.of("persisted")) == 1000)
        assert paused == [True, False]

    run(test())


def test_4_a_timer_fires_once_and_never_early() -> None:
    async def test() -> None:
        fired: list[float] = []

        def effects(kind: str, *_: Any) -> Effects:
            if kind == "start":
                yield SetTimer("t", 0.0317)
            elif kind == "timer":
                fired.append(time.monotonic())

        a = Host(Recorder(effects), node="a")
        began = time.monotonic()
        async with cluster(a):
            await until(lambda: fired)
            await asyncio.sleep(0.06)
        assert len(fired) == 1 and 0.0317 <= fired[0] - began < 2.0

    run(test())


def test_4_setting_a_timer_again_moves_it_and_cancelling_removes_it() -> None:
    async def test() -> None:
        machine = Recorder(
            on_start(
                SetTimer("moved", 0.001),
                SetTimer("cancelled", 0.001),
                SetTimer("moved", 0.03),
                SetTimer("first", 0.01),
                CancelTimer("cancelled"),
                CancelTimer("never set"),
            )
        )
        async with cluster(Host(machine, node="a")):
            await until(lambda: len(machine.of("timer")) == 2)
            assert machine.of("timer") == [("first",), ("moved",)]

    run(test())


def test_5_a_restarted_node_gets_its_durable_records(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(Host(Sum(), node="a", folder=tmp_path)) as _:
            pass
        for expected in (3, 6, 9):
            a = Host(Sum(), node="a", folder=tmp_path)
            async with cluster(a):
                assert await a.command(Add(3)) == expected

    run(test())


def test_commands_are_answered_each_with_its_own_result(tmp_path: Path) -> None:
    async def test() -> None:
        a = Host(Sum(), node="a", folder=tmp_path)
        async with cluster(a):
            totals = await asyncio.gather(*(a.command(Add(1)) for _ in range(500)))
            assert totals == list(range(1, 501))

    run(test())


@pytest.mark.parametrize("what", ["halt", "bug", "no effect", "cannot be encoded"])
def test_a_node_in_doubt_ends_at_once(tmp_path: Path, what: str) -> None:
    def effects(kind: str, *of: Any) -> Effects:
        if kind == "command":
            yield Persist(Number(1), "after")
            match what:
                case "halt":
                    yield Halt("I was deposed")
                case "bug":
                    raise KeyError("a bug in the machine")
                case "no effect":
                    yield "not an effect"  # type: ignore[misc]
                case _:
                    yield Send("b", object())
            raise AssertionError("nothing is asked of a machine that has ended")

    async def test() -> None:
        machine, other = Recorder(effects), Recorder()
        a, b = Host(machine, node="a", folder=tmp_path), Host(other, node="b")
        async with cluster(a, b):
            with pytest.raises(HaltedError):
                await a.command(Add(1))
            with pytest.raises(HaltedError, match="node a halted"):
                await a.ended()
            await until(lambda: other.of("peer")[-1:] == [("a", False)])
            given = len(machine.seen)
            with pytest.raises(HaltedError):
                await a.command(Add(1))
            assert len(machine.seen) == given and not machine.of("persisted")
        History(tmp_path).close()

    run(test())


def test_a_halted_process_exits_with_a_code_that_asks_for_a_restart() -> None:
    script = (
        "import sys\n"
        "from lockstep.errors import LockstepError\n"
        "from lockstep.protocol.host import Host, serve\n"
        "from lockstep.protocol.machine import Halt, Machine, SetTimer\n"
        "class Doubting(Machine):\n"
        "    def on_start(self, durable): return [SetTimer('t', 0.01)]\n"
        "    def on_timer(self, name): return [Halt('deposed')]\n"
        "try: serve(lambda: Host(Doubting(), node='a'))\n"
        "except LockstepError as error: print(error); sys.exit(error.exit_code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert ended.returncode == 3 and "node a halted: deposed" in ended.stdout, ended.stderr


def test_a_disk_that_fails_ends_the_node_and_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        machine = Recorder(lambda kind, *of: [Persist(Number(1), "lie")] if kind == "command" else ())
        a = Host(machine, node="a", folder=tmp_path)
        async with cluster(a):
            monkeypatch.setattr(
                History,
                "append",
                lambda *_: (_ for _ in ()).throw(StorageError("disk full", hint="free some")),
            )
            with pytest.raises(HaltedError, match="disk full"):
                await a.command(Add(1))
            assert machine.of("persisted") == []

    run(test())


def test_a_machine_that_persists_without_a_folder_is_a_mistake_that_is_told() -> None:
    async def test() -> None:
        a = Host(Recorder(on_start(Persist(Number(1)))), node="a")
        await a.start()
        with pytest.raises(HaltedError, match="its host has no folder"):
            await a.ended()
        await a.stop()

    run(test())


def test_records_of_another_protocol_are_refused(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.append([msgspec.msgpack.encode(Say("not a number"))])
    history.close()

    async def test() -> None:
        with pytest.raises(CorruptHistoryError, match="does not know"):
            await Host(Recorder(), node="a", folder=tmp_path).start()

    run(test())
    History(tmp_path).close()


def test_a_union_without_tags_is_refused_when_the_host_is_built() -> None:
    class One(msgspec.Struct, frozen=True):
        x: int

    class Two(msgspec.Struct, frozen=True):
        y: int

    class Wrong(Machine):
        MESSAGES = One | Two

    with pytest.raises(UsageError, match=r"Wrong\.MESSAGES cannot be decoded"):
        Host(Wrong(), node="a")


def test_appends_are_answered_and_subscriptions_follow_the_log() -> None:
    async def test() -> None:
        log = MemoryLog()
        await log.create_topic("t", partitions=2)
        await log.append_batch("t", 1, [Entry(b"0"), Entry(b"1")])
        machine = Recorder(
            on_start(
                Subscribe("t", 1, 1),
                *(Append("t", 1, str(n).encode(), key=b"k", token=n) for n in range(2, 50)),
                Note("asked"),
            )
        )
        async with cluster(Host(machine, node="a", log=log)):
            await until(lambda: len(machine.of("record")) == 49)
            assert [record.offset for (record,) in machine.of("record")] == list(range(1, 50))
            assert [record.value for (record,) in machine.of("record")] == [b"%d" % n for n in range(1, 50)]
            assert sorted(machine.of("appended")) == [(n, n) for n in range(2, 50)]
        await log.close()

    run(test())


def test_a_subscription_that_moves_itself_gets_nothing_of_the_old_place() -> None:
    def effects(kind: str, *of: Any) -> Effects:
        if kind == "start":
            yield Subscribe("t", 0, 0)
        elif kind == "record" and of[0].offset == 3:
            yield Subscribe("t", 0, 8)

    async def test() -> None:
        log = MemoryLog()
        await log.create_topic("t")
        await log.append_batch("t", 0, [Entry(b"%d" % n) for n in range(10)])
        machine = Recorder(effects)
        async with cluster(Host(machine, node="a", log=log)):
            await until(lambda: len(machine.of("record")) == 6)
            assert [record.offset for (record,) in machine.of("record")] == [0, 1, 2, 3, 8, 9]
        await log.close()

    run(test())


def test_a_refused_append_is_told_and_a_broken_subscription_ends_the_node() -> None:
    async def test() -> None:
        log = MemoryLog()
        await log.create_topic("t")
        machine = Recorder(on_start(Append("missing", 0, b"x", token="lost")))
        async with cluster(Host(machine, node="a", log=log)):
            await until(lambda: machine.of("append_failed"))
            assert machine.of("append_failed")[0][0] == "lost"
        a = Host(Recorder(on_start(Subscribe("t", 0, 77))), node="a", log=log)
        await a.start()
        with pytest.raises(HaltedError, match="offset 77"):
            await a.ended()
        await a.stop()
        await log.close()

    run(test())


def test_local_commands_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.protocol.host.MAX_COMMANDS", 10)

    async def test() -> None:
        machine = Recorder(
            lambda kind, *of: [Reply(*of[:2], "done")] if kind == "command" and of[2] == Add(1) else ()
        )
        a = Host(machine, node="a")
        async with cluster(a):
            unanswered = [a.submit(Add(0)) for _ in range(10)]
            with pytest.raises(LockstepError, match="await a reply already"):
                await a.command(Add(1))
            unanswered[0].cancel()
            await asyncio.sleep(0)
            assert await a.command(Add(1)) == "done"

    run(test())
