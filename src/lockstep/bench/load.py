"""The load of the pipeline benches: a process of its own that produces at a steady rate.

Record n has key `k<n mod keys>` and a value `n,t,` padded to `size` bytes, where t is the monotonic clock in
nanoseconds at the moment of `produce`. Monotonic clocks are shared by all processes of a machine, so whoever
reads t from an output knows the latency. The state of a count per key after n is `n // keys + 1`: the benches
need no other oracle. With several topics, `a,b`, record n goes to topic n mod 2.

    python -m lockstep.bench.load --bootstrap-servers HOST:PORT --topic in --rate 1000 --seconds 30 \
        --count-file count
"""

import argparse
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from confluent_kafka import Producer

from lockstep import process
from lockstep.errors import LockstepError
from lockstep.log.failover import RECONNECT, LeaderSearch

TICK_SECONDS = 0.002
"""Records that are due within a tick are produced together: waking up for each would cost half a core."""


@dataclass(frozen=True)
class Load:
    bootstrap_servers: str
    topic: str
    """Or several, separated by commas."""
    rate: int
    seconds: float
    first: int = 0
    keys: int = 100
    size: int = 200

    def start(self, folder: Path) -> "Running":
        """Produce in the background until `seconds` have passed or `finish` is called."""
        count = folder / f"{self.topic}-{self.first}.count"
        arguments = [
            f"--{name.replace('_', '-')}={getattr(self, name)}"
            for name in ("bootstrap_servers", "topic", "rate", "seconds", "first", "keys", "size")
        ]
        command = [sys.executable, "-m", "lockstep.bench.load", f"--count-file={count}", *arguments]
        return Running(self, process.launch(command, log=folder / "load.log"), count)


@dataclass(frozen=True)
class Running:
    """A load that is being produced."""

    load: Load
    process: "Popen[bytes]"
    count_file: Path

    def wait(self) -> int:
        """Wait for the end; how many records were produced, all of them acknowledged."""
        code = self.process.wait(self.load.seconds + 120)
        if code != 0:
            raise LockstepError(
                f"the load generator ended with code {code}",
                hint=f"see {self.count_file.parent / 'load.log'}",
            )
        return int(self.count_file.read_text())

    def finish(self) -> int:
        """Stop producing now; how many records were produced."""
        self.process.terminate()
        return self.wait()


def value_of(n: int, size: int) -> bytes:
    return f"{n},{time.monotonic_ns()},".encode().ljust(size, b".")


def produce(load: Load) -> int:
    """Produce until the time is over or SIGTERM comes; returns how many records were acknowledged."""
    search = LeaderSearch()
    producer = Producer(
        {
            **RECONNECT,
            "error_cb": search.lost,
            "bootstrap.servers": load.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 0 if load.rate < 10_000 else 5,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    keys = [f"k{number}".encode() for number in range(load.keys)]
    topics = load.topic.split(",")
    total = int(load.rate * load.seconds)
    start = time.monotonic()
    sent = 0
    while sent < total and not stopping.is_set():
        due = min(total, int((time.monotonic() - start) * load.rate) + 1)
        for n in range(load.first + sent, load.first + due):
            producer.produce(topics[n % len(topics)], value=value_of(n, load.size), key=keys[n % load.keys])
        sent = due
        producer.poll(0)
        search.look(producer, topics)
        stopping.wait(max(TICK_SECONDS, start + sent / load.rate - time.monotonic()))
    left = producer.flush(60)
    if left:
        raise LockstepError(f"{left} records of the load were not acknowledged within 60 s")
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("bootstrap-servers", str), ("topic", str), ("rate", int), ("seconds", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name, default in (("first", 0), ("keys", 100), ("size", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--count-file", type=Path, required=True)
    arguments = vars(parser.parse_args())
    count_file: Path = arguments.pop("count_file")
    count_file.write_text(str(produce(Load(**arguments))))


if __name__ == "__main__":
    main()
