"""What is done to Kafka and its ensemble, and what is looked at (RT-ZooKeeper, sections 7.1 to 7.3).

- **a message's way**: the ensemble's leader, the broker that leads the partition, or both get kill -9; the
  round's figure is the longest latency of a message that was due since then.
- **a broker's connection**: after the death of the ensemble's leader, how long until a living broker that lost
  its connection has one again, seen in the servers' `cons`. ZooKeeper's survivors close all connections; ours
  keep theirs, so that only a broker that was connected to the dead server has anything to do.
- **a topic**: how long its creation takes, with and without a kill just before.

After each round the dead are started again, and the next one waits until servers and brokers hold the same.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from lockstep.bench.coordination_kafka_cluster import BROKERS, CHROOT, KafkaPair
from lockstep.bench.coordination_kafka_traffic import Traffic
from lockstep.bench.coordination_sides import Side, on_loop
from lockstep.coordination.client import Client
from lockstep.coordination.ensemble import ask

Failure = Literal["zookeeper", "broker", "both"]
_SESSION = re.compile(r"sid=0x([0-9a-f]+)")
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Reconnection:
    """What became of the living brokers' connections; milliseconds from the kill."""

    took: tuple[float, ...] = ()
    """Of those that had to connect again."""
    kept: int = 0
    expired: int = 0
    """How many of those that connected again had lost their session by then."""


@dataclass(frozen=True)
class Round:
    worst_ms: float
    reconnection: Reconnection = field(default_factory=Reconnection)


def fail(side: Side, kafka: KafkaPair, traffic: Traffic, topic: str, failure: Failure) -> Round:
    """Kill, measure, and bring everything back."""
    broker = kafka.wait_replicated(topic)
    leader = side.wait_in_sync()
    traffic.wait_flowing(time.monotonic())
    victims = [broker] if failure != "zookeeper" else []
    alive = [one for one in BROKERS if one not in victims]
    with _watching(side, leader if failure != "broker" else 0, alive) as watch:
        killed = time.monotonic()
        if failure != "broker":
            side.strike(leader)
        for one in victims:
            kafka.kill(one)
        traffic.wait_flowing(killed)
        worst = traffic.worst(killed)
        if failure != "broker":
            watch.wait_connected()
    if failure != "broker":
        side.bury(leader)
        side.start_server(leader)
    for one in victims:
        kafka.start_broker(one)
    return Round(worst * 1000, watch.found(killed))


def create(side: Side, kafka: KafkaPair, topic: str, *, kill: bool) -> float:
    """Milliseconds until a new topic is there; with `kill`, the ensemble's leader dies just before."""
    leader = side.wait_in_sync()
    if kill:
        side.strike(leader)
    took = kafka.create_topic(topic)
    if kill:
        side.bury(leader)
        side.start_server(leader)
        side.wait_in_sync()
    kafka.wait_replicated(topic)
    return took * 1000


class Watch:
    """Follows the connections of the living brokers' sessions on the surviving servers."""

    def __init__(self, side: Side, dead: int, brokers: list[int]) -> None:
        self._servers = [member.client for server, member in side.members.items() if server != dead]
        self._sessions = on_loop(_sessions(side.connect_string, brokers))
        self._before = self._connected()
        self._strangers = self._before - self._sessions
        """Sessions of others, and of the broker that dies too."""
        self._lost: dict[str, float] = {}
        self._back: dict[str, float] = {}
        self._is_running = True
        self._thread = threading.Thread(target=self._look, name="watch-connections", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_running = False
        self._thread.join()

    def wait_connected(self, seconds: float = 60.0) -> None:
        """Wait until each living broker has a connection (or had one all the time)."""
        deadline = time.monotonic() + seconds
        away = len(self._sessions - self._before)
        while time.monotonic() < deadline and (
            len(self._connected() - self._strangers) < len(self._sessions) or len(self._back) < away
        ):
            time.sleep(_LOOK_SECONDS)

    def found(self, killed: float) -> Reconnection:
        took = tuple(round((at - killed) * 1000, 1) for at in self._back.values())
        return Reconnection(
            took,
            kept=len((self._sessions & self._before) - self._lost.keys()),
            expired=len(self._back.keys() - self._sessions),
        )

    def _look(self) -> None:
        before = self._before
        while self._is_running:
            now, connected = time.monotonic(), self._connected()
            for session in (before & self._sessions) - connected:
                self._lost.setdefault(session, now)
            for session in connected - before - self._strangers:
                self._back.setdefault(session, now)
            before = connected
            time.sleep(_LOOK_SECONDS)

    def _connected(self) -> set[str]:
        return {
            found for host, port in self._servers for found in _SESSION.findall(ask(host, port, "cons", 0.5))
        }


@contextmanager
def _watching(side: Side, dead: int, brokers: list[int]) -> Iterator[Watch]:
    watch = Watch(side, dead, brokers)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


async def _sessions(servers: str, brokers: list[int]) -> set[str]:
    """The sessions of these brokers, as the servers print them."""
    async with Client(servers) as client:
        stats = [await client.exists(f"{CHROOT}/brokers/ids/{broker}") for broker in brokers]
    return {f"{stat.ephemeral_owner & (1 << 64) - 1:x}" for stat in stats if stat is not None}
