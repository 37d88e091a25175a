"""What the deduplicating consumer and the egress cost, apart from Spark: part of `lockstep bench latency`.

Two "sites" write every output twice, as real ones do. Throughput: how many records a second one core reads and
deduplicates. Added latency: outputs read by a plain consumer, by `lockstep.Consumer` and, behind the egress, by a
plain consumer of the clean topic, by turns in one run; the difference of the medians is what each adds.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

import lockstep
from lockstep import process
from lockstep.bench.sides import OUTPUT_PARTITIONS, create_topics, plain_consumer, values
from lockstep.errors import LockstepError
from lockstep.observe.percentiles import median
from lockstep.spark.identity import IDENTITY_HEADER, REALTIME, SITE_HEADER, Identity, encode

RATE = 2000
ROUNDS = 2


def measure(bootstrap_servers: str, quick: bool, console: Console) -> dict[str, float]:
    console.print("deduplication: throughput, then added latency", highlight=False)
    throughput = _throughput(bootstrap_servers, 200_000 if quick else 500_000)
    plain, deduplicated, clean = _latencies(bootstrap_servers, 8.0 if quick else 30.0)
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
    """Medians of a plain consumer, of ours, and of a plain one behind the egress: by turns, one at a time."""
    topic, clean = "deduplication-latency", "deduplication-latency-clean"
    create_topics(bootstrap_servers, {topic: OUTPUT_PARTITIONS, clean: OUTPUT_PARTITIONS})
    plain: list[float] = []
    deduplicated: list[float] = []
    behind: list[float] = []
    written = 0

    def round_of(read: Callable[[], Iterable[bytes]]) -> float:
        nonlocal written
        written += int(RATE * seconds)
        return _median_latency(bootstrap_servers, topic, seconds, written, read)

    for _ in range(ROUNDS):
        plain_reader = plain_consumer(bootstrap_servers, topic)
        plain.append(round_of(lambda reader=plain_reader: values(reader, 0.05)))  # type: ignore[misc]
        plain_reader.close()
        with lockstep.Consumer(bootstrap_servers, topic) as ours:
            deduplicated.append(round_of(lambda: [record.value or b"" for record in ours.records(0.05)]))
        with _egress(bootstrap_servers, topic, clean):
            clean_reader = plain_consumer(bootstrap_servers, clean, {"isolation.level": "read_committed"})
            behind.append(round_of(lambda reader=clean_reader: values(reader, 0.05)))  # type: ignore[misc]
            clean_reader.close()
    return median(plain), median(deduplicated), median(behind)


def _median_latency(
    bootstrap_servers: str, topic: str, seconds: float, end: int, read: Callable[[], Iterable[bytes]]
) -> float:
    """Produce in a process of its own, read in this one; the first half is warm-up."""
    first = end - int(RATE * seconds)
    ready = time.monotonic_ns()
    produce(bootstrap_servers, topic, first, first + 1)
    deadline = time.monotonic() + 60
    while not any(int(value) >= ready for value in read()):  # it runs, and has caught up with earlier rounds
        if time.monotonic() > deadline:
            raise LockstepError("no output within 60 s while the deduplication was measured")
    producer = process.launch(
        [
            *(sys.executable, "-m", "lockstep.bench.deduplication"),
            *(bootstrap_servers, topic, str(first + 1), str(end)),
        ]
    )
    latencies: list[float] = []
    deadline = time.monotonic() + seconds + 30
    try:
        while producer.poll() is None and time.monotonic() < deadline:
            latencies.extend((time.monotonic_ns() - int(value)) / 1e6 for value in read())
    finally:
        process.stop(producer)
    if len(latencies) < RATE * seconds / 2:
        raise LockstepError(f"only {len(latencies)} outputs arrived while the deduplication was measured")
    return median(latencies[len(latencies) // 2 :])


@contextlib.contextmanager
def _egress(bootstrap_servers: str, topic: str, clean: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        running = process.launch(
            [
                *(sys.executable, "-m", "lockstep.replicas.egress"),
                *("--bootstrap-servers", bootstrap_servers, "--name", "bench"),
                *("--source", topic, "--clean", clean),
            ],
            log=Path(folder) / "egress.log",
        )
        try:
            yield
        finally:
            process.stop(running)


def produce(bootstrap_servers: str, topic: str, first: int, end: int) -> None:
    """Outputs `first` to `end` of two sites at a steady rate; the value is the time of the produce."""
    producer = _producer(bootstrap_servers)
    start = time.monotonic()
    for number in range(first, end):
        value = str(time.monotonic_ns()).encode()
        for site in (b"site-1", b"site-2"):
            _write(producer, topic, number % OUTPUT_PARTITIONS, number, site, value)
        producer.poll(0)
        time.sleep(max(0.0, start + (number - first) / RATE - time.monotonic()))
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


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
