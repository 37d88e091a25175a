"""The load of the pipeline benches: a process of its own that produces at a steady rate.

Record n has key `k<n mod keys>` and a value `n,t,` padded to `size` bytes, where t is the monotonic clock in
nanoseconds at the moment of `produce`. Monotonic clocks are shared by all processes of a machine, so whoever
reads t from an output knows the latency. The state of a count per key after n is `n // keys + 1`: the benches
need no other oracle.

    python -m lockstep.bench.load --bootstrap-servers HOST:PORT --topic in --rate 1000 --seconds 30
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from confluent_kafka import Producer

from lockstep import process
from lockstep.errors import LockstepError


@dataclass(frozen=True)
class Load:
    bootstrap_servers: str
    topic: str
    rate: int
    seconds: float
    first: int = 0
    keys: int = 100
    size: int = 200

    @property
    def records(self) -> int:
        return int(self.rate * self.seconds)

    def start(self, log: Path) -> "Popen[bytes]":
        """Produce in the background; the process exits 0 once every record is acknowledged."""
        arguments = [
            f"--{name.replace('_', '-')}={getattr(self, name)}"
            for name in ("bootstrap_servers", "topic", "rate", "seconds", "first", "keys", "size")
        ]
        return process.launch([sys.executable, "-m", "lockstep.bench.load", *arguments], log=log)


def finish(running: "Popen[bytes]", timeout: float) -> None:
    """Wait until every record of a started load is acknowledged."""
    code = running.wait(timeout)
    if code != 0:
        raise LockstepError(f"the load generator ended with code {code}", hint="its log says why")


def value_of(n: int, size: int) -> bytes:
    return f"{n},{time.monotonic_ns()},".encode().ljust(size, b".")


def produce(load: Load) -> None:
    producer = Producer(
        {
            "bootstrap.servers": load.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 0,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    keys = [f"k{number}".encode() for number in range(load.keys)]
    start = time.monotonic()
    sent = 0
    while sent < load.records:
        due = min(load.records, int((time.monotonic() - start) * load.rate) + 1)
        for n in range(load.first + sent, load.first + due):
            producer.produce(load.topic, value=value_of(n, load.size), key=keys[n % load.keys])
        sent = due
        producer.poll(0)
        time.sleep(max(0.0, start + sent / load.rate - time.monotonic()))
    left = producer.flush(60)
    if left:
        raise LockstepError(f"{left} records of the load were not acknowledged within 60 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("bootstrap-servers", str), ("topic", str), ("rate", int), ("seconds", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name, default in (("first", 0), ("keys", 100), ("size", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    produce(Load(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
