"""How fast the source alone merges a backlog of two topics: part of `lockstep bench order`.

The backlog is produced first, with the cuts that order it. Then a JVM that does nothing else reads it through the
source's own classes (`io.lockstep.source.Drain`), one thread for a shard. One shard gets one core and two get two,
and the broker that serves them is held on the same cores: else the second shard would compete with the broker for
the core that it is said to have. Both have the collector that sites have: by itself Java takes another on one.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

from lockstep.bench.sides import create_topics
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.observe.percentiles import median
from lockstep.order.records import Cut, encode
from lockstep.setup import build, ivy, jars, java

RECORDS = {True: 3_000_000, False: 10_000_000}
"""Of each shard."""
ROUNDS = {True: 3, False: 5}
SIZE = 200
CUT_EVERY = 16
"""Inputs of a queue between two cuts: about what comes in 16 ms at 1,000 events a second."""
HEAP_MB = 300
SHARDS = (1, 2)


def measure(broker: Broker, quick: bool, console: Console) -> dict[str, float]:
    """Records per second of one shard and of two, medians of several rounds, and the heap that they needed."""
    bootstrap_servers = broker.bootstrap_servers
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < max(SHARDS):
        raise LockstepError(f"{max(SHARDS)} shards need {max(SHARDS)} cores, here is {len(cores)}")
    records = RECORDS[quick]
    for shards in SHARDS:
        with console.status(f"producing a backlog of {records:,} records for each of {shards} shards"):
            _produce(bootstrap_servers, f"merge-{shards}", shards, records)
    rates: dict[int, list[float]] = {shards: [] for shards in SHARDS}
    heap = 0
    for _ in range(ROUNDS[quick]):
        for shards in SHARDS:
            with _held_on(set(cores[:shards]), [broker.pid(node) for node in broker.nodes]):
                counted, took_ms, used_mb = _drain(bootstrap_servers, f"merge-{shards}", shards, records)
            rates[shards].append(counted / took_ms * 1000)
            heap = max(heap, used_mb)
    found: dict[str, float] = {
        "one_shard": round(median(rates[1])),
        "two_shards": round(median(rates[2])),
        "heap_mb": heap,
        "heap_limit_mb": HEAP_MB,
        "records": records,
    }
    console.print(
        f"the source alone: {found['one_shard']:,} records/s with one shard on one core, "
        f"{found['two_shards']:,} with two on two, in a heap of {HEAP_MB} MB",
        highlight=False,
    )
    return found


@contextlib.contextmanager
def _held_on(cores: set[int], pids: list[int]) -> Iterator[None]:
    """Hold these processes, and what this thread starts, on these cores."""
    before = os.sched_getaffinity(0)
    try:
        _hold(pids, cores)
        yield
    finally:
        _hold(pids, before)


def _hold(pids: list[int], cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores)


def _produce(bootstrap_servers: str, name: str, shards: int, records: int) -> None:
    topics = {f"{name}-a": shards, f"{name}-b": shards, f"{name}-order": shards}
    create_topics(bootstrap_servers, topics)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    value = b"." * SIZE
    for number in range(records // 2):
        for shard in range(shards):
            for topic in (f"{name}-a", f"{name}-b"):
                producer.produce(topic, value, b"key", shard)
            if number % CUT_EVERY == CUT_EVERY - 1 or number == records // 2 - 1:
                producer.produce(f"{name}-order", encode(Cut((number + 1, number + 1))), None, shard)
        if number % 5000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise LockstepError("the backlog was not written within 120 s")


def _drain(bootstrap_servers: str, name: str, shards: int, records: int) -> tuple[int, int, int]:
    classpath = os.pathsep.join(map(str, [build.jar(), ivy.pyspark_jars() / "*", *jars.classpath("spark")]))
    answer = subprocess.run(
        [
            str(java.find().java),
            f"-Xmx{HEAP_MB}m",
            "-XX:+UseG1GC",
            *("-cp", classpath, "io.lockstep.source.Drain"),
            *(bootstrap_servers, f"{name}-a+{name}-b", f"{name}-order:0", str(shards), str(records)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if answer.returncode != 0:
        raise LockstepError(f"the reader failed: {answer.stderr.strip().splitlines()[-1:]}")
    counted, took_ms, used_mb = map(int, answer.stdout.split())
    return counted, took_ms, used_mb
