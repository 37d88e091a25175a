"""Our own recipes on our own ensemble: one holder at a time, larger tokens, nobody waits for the dead."""

import asyncio
import time
from typing import Any

import pytest

from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import Ensemble
from lockstep.coordination.errors import ClientClosed, ConnectionLoss
from lockstep.coordination.recipes import Barrier, DoubleBarrier, Election, Lock, Membership
from lockstep.errors import LockstepError

pytestmark = pytest.mark.real


def test_locks_exclude_each_other_and_tokens_grow_while_the_leader_is_killed(ensemble: Ensemble) -> None:
    async def run() -> None:
        inside = 0
        tokens: list[int] = []

        async def work(client: Client, rounds: int) -> None:
            nonlocal inside
            for _ in range(rounds):
                async with Lock(client, "/lock") as lock:
                    inside += 1
                    assert inside == 1
                    tokens.append(lock.token)
                    await asyncio.sleep(0)
                    inside -= 1

        clients = [Client(ensemble.connect_string, timeout=5) for _ in range(3)]
        for client in clients:
            await client.start()
        work_done = asyncio.gather(*(work(client, 30) for client in clients))
        while len(tokens) < 20:
            await asyncio.sleep(0.005)
        ensemble.kill(ensemble.wait_leader())
        await asyncio.wait_for(work_done, 30)
        assert len(tokens) == 90
        assert tokens == sorted(set(tokens)), "every later holder has a larger token"
        for client in clients:
            await client.stop()

    asyncio.run(run())


def test_a_lock_can_be_given_up_waiting_for(ensemble: Ensemble) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string) as first, Client(ensemble.connect_string) as second:
            async with Lock(first, "/lock"):
                assert not await Lock(second, "/lock").acquire(timeout=0.1)
                await first.sync("/lock")  # it may be at a server that has not heard of it yet
                assert len(await first.children("/lock")) == 1, "who gave up does not stand in the way"
            assert await Lock(second, "/lock").acquire(timeout=10)

    asyncio.run(run())


def late_answers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this client creates is there, and it does not hear of it."""
    create = client.create_and_stat

    async def late(*arguments: Any, **options: Any) -> Any:
        await create(*arguments, **options)
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "create_and_stat", late)


def test_who_gives_up_before_it_heard_of_its_place_does_not_stand_in_the_way(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string) as first, Client(ensemble.connect_string) as second:
            with monkeypatch.context() as patch:
                late_answers(second, patch)
                assert not await Lock(second, "/unheard").acquire(timeout=0.5)
            assert await Lock(first, "/unheard").acquire(timeout=10)

    asyncio.run(run())


def test_a_candidate_does_not_wait_for_an_attempt_of_its_own(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string) as client:
            election = Election(client, "/unheard-election", b"only")
            with monkeypatch.context() as patch:
                late_answers(client, patch)
                assert not await election.win(timeout=0.5)
            assert await election.win(timeout=10)
            assert await election.candidates() == [b"only"]

    asyncio.run(run())


def test_a_leader_that_dies_with_its_connection_is_replaced_at_once(ensemble: Ensemble) -> None:
    async def run() -> None:
        swift = Client(ensemble.connect_string, timeout=10, close_with_connection=True)
        await swift.start()
        async with Client(ensemble.connect_string, timeout=10) as heir:
            first, second = Election(swift, "/election", b"first"), Election(heir, "/election", b"second")
            assert await first.win(timeout=10)
            assert not await second.win(timeout=0.05)
            assert await second.candidates() == [b"first", b"second"]
            swift.abort()
            started = time.monotonic()
            assert await second.win(timeout=10)
            assert time.monotonic() - started < 1.0, "far below the session timeout"
            assert second.token > first.token
            assert not first.is_leader

    asyncio.run(run())


def test_members_are_told_who_comes_and_goes(ensemble: Ensemble) -> None:
    async def run() -> None:
        seen: list[frozenset[str]] = []

        async def shown(expected: set[str]) -> None:
            deadline = time.monotonic() + 10
            while not seen or seen[-1] != expected:
                assert time.monotonic() < deadline, seen
                await asyncio.sleep(0.005)

        async with Client(ensemble.connect_string) as first:
            group = Membership(first, "/sites", on_change=seen.append)
            assert await group.follow() == frozenset()
            await group.join("a", b"data")
            await shown({"a"})
            other = Client(ensemble.connect_string, close_with_connection=True)
            await other.start()
            second = Membership(other, "/sites")
            with pytest.raises(LockstepError, match="a is a member already"):
                await second.join("a")
            await second.join("b")
            await shown({"a", "b"})
            assert await second.data("a") == b"data"
            other.abort()
            await shown({"a"})

    asyncio.run(run())


def test_barriers(ensemble: Ensemble) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string) as first, Client(ensemble.connect_string) as second:
            barrier = Barrier(first, "/barrier")
            await barrier.put()
            waiting = asyncio.create_task(Barrier(second, "/barrier").wait())
            await second.sync()
            assert not waiting.done()
            await barrier.lift()
            await asyncio.wait_for(waiting, 10)
            pair = [DoubleBarrier(c, "/double", 2, n) for c, n in ((first, "1"), (second, "2"))]
            alone = asyncio.create_task(pair[0].enter())
            await first.sync()
            assert not alone.done()
            await asyncio.wait_for(asyncio.gather(alone, pair[1].enter()), 10)
            await asyncio.wait_for(asyncio.gather(*(half.leave() for half in pair)), 10)

    asyncio.run(run())


def test_a_stopped_client_ends_whoever_waits(ensemble: Ensemble) -> None:
    async def run() -> None:
        async with Client(ensemble.connect_string) as holder:
            client = Client(ensemble.connect_string)
            await client.start()
            async with Lock(holder, "/lock"):
                waiting = asyncio.create_task(Lock(client, "/lock").acquire())
                while len(await holder.children("/lock")) < 2:
                    await asyncio.sleep(0.005)
                await client.stop()
                with pytest.raises((ClientClosed, ConnectionLoss)):
                    await asyncio.wait_for(waiting, 5)

    asyncio.run(run())
