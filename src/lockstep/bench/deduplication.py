"""What the deduplicating consumer and the egress cost, apart from Spark: part of `lockstep bench latency`.

Two "sites" write every output twice, as real ones do. Throughput: how many records a second one core reads and
deduplicates. Added latency: the same outputs read by a plain consumer, by `lockstep.Consumer` and, behind the
egress, by a plain consumer of the clean topic, in one run; the difference of the medians is what each adds.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

import lockstep
from lockstep import process
from lockstep.bench.sides import OUTPUT_PARTITIONS, create_topics, plain_consumer, values
from lockstep.observe.percentiles import median
from lockstep.spark.identity import IDENTITY_HEADER, REALTIME, SITE_HEADER, Identity, encode

RATE = 2000


def measure(bootstrap_servers: str, quick: bool, console: Console) -> dict[str, float]:
    console.print("deduplication: throughput, then added latency", highlight=False)
    throughput = _throughput(bootstrap_servers, 200_000 if quick else 500_000)
    plain, deduplicated, clean = _latencies(bootstrap_servers, 10.0 if quick else 30.0)
    return {
        "records_per_second": round(throughput),
        "plain_p50_ms": round(plain, 3),
        "deduplicated_p50_ms": round(deduplicated, 3),
        "added_p50_ms": round(deduplicated - plain, 3),
        "egress_added_p50_ms": round(clean - deduplicated, 3),
    }


def _throughput(bootstrap_servers: str, outputs: int) -> float:
    topic = "deduplication-throughput"
    create_topics(bootstrap_servers, {topic: 1})
    producer = _producer(bootstrap_servers)
    for number in range(outputs):
        for site in (b"site-1", b"site-2"):
            _write(producer, topic, 0, number, site, b"x" * 100)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    with lockstep.Consumer(bootstrap_servers, topic) as consumer:
        seen = len(consumer.records(10.0))  # connected and assigned: the clock starts here
        first = seen
        began = time.process_time(), time.monotonic()
        while seen < outputs:
            seen += len(consumer.records(10.0))
        busy = max(time.process_time() - began[0], time.monotonic() - began[1])
    return 2 * (outputs - first) / busy


def _latencies(bootstrap_servers: str, seconds: float) -> tuple[float, float, float]:
    topic, clean = "deduplication-latency", "deduplication-latency-clean"
    create_topics(bootstrap_servers, {topic: OUTPUT_PARTITIONS, clean: OUTPUT_PARTITIONS})
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        egress = process.launch(
            [
                sys.executable,
                *("-m", "lockstep.replicas.egress"),
                *("--bootstrap-servers", bootstrap_servers, "--name", "bench"),
                *("--source", topic, "--clean", clean),
            ],
            log=Path(folder) / "egress.log",
        )
        plain_reader = plain_consumer(bootstrap_servers, topic)
        clean_reader = plain_consumer(bootstrap_servers, clean, {"isolation.level": "read_committed"})
        ours = lockstep.Consumer(bootstrap_servers, topic)
        readers = {
            "plain": lambda: values(plain_reader, 0.05),
            "ours": lambda: [record.value or b"" for record in ours.records(0.05)],
            "clean": lambda: values(clean_reader, 0.05),
        }
        stopping = threading.Event()
        latencies: dict[str, list[float]] = {name: [] for name in readers}
        threads = [
            threading.Thread(target=_collect, args=(read, latencies[name], stopping))
            for name, read in readers.items()
        ]
        try:
            for thread in threads:
                thread.start()
            _produce_steadily(bootstrap_servers, topic, seconds)
            deadline = time.monotonic() + 30
            while len(latencies["clean"]) < RATE * seconds * 0.99 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
            for reader in (ours, plain_reader, clean_reader):
                reader.close()
            process.stop(egress)
    plain, deduplicated, behind = (median(_second_half(latencies[name])) for name in readers)
    return plain, deduplicated, behind


def _second_half(values_ms: list[float]) -> list[float]:
    """Warm-up dropped."""
    return values_ms[len(values_ms) // 2 :]


def _collect(read: Callable[[], Iterable[bytes]], into: list[float], stopping: threading.Event) -> None:
    while not stopping.is_set():
        into.extend((time.monotonic_ns() - int(value)) / 1e6 for value in read())


def _produce_steadily(bootstrap_servers: str, topic: str, seconds: float) -> None:
    producer = _producer(bootstrap_servers)
    start = time.monotonic()
    sent = 0
    while sent < RATE * seconds:
        due = min(int(RATE * seconds), int((time.monotonic() - start) * RATE) + 1)
        for number in range(sent, due):
            value = str(time.monotonic_ns()).encode()
            for site in (b"site-1", b"site-2"):
                _write(producer, topic, number % OUTPUT_PARTITIONS, number, site, value)
        sent = due
        producer.poll(0)
        time.sleep(max(0.0, start + sent / RATE - time.monotonic()))
    producer.flush(60)


def _producer(bootstrap_servers: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 0,
            "queue.buffering.max.messages": 2_000_000,
        }
    )


def _write(producer: Producer, topic: str, partition: int, number: int, site: bytes, value: bytes) -> None:
    identity = encode(Identity(REALTIME, shard=0, reducer=0, a=number, b=0))
    headers = [(IDENTITY_HEADER, identity), (SITE_HEADER, site)]
    producer.produce(topic, value, partition=partition, headers=headers)
