"""The egress: writes a clean topic exactly once, for consumers that know nothing of Lockstep.

One worker for every output partition, each with a transactional id of its own. What happens in which order:

1. `init_transactions` fences any older egress of this partition: its open transaction is aborted, and it can
   never commit again.
2. Only then the last committed state is read (next offset and marks), with `read_committed`.
3. Outputs are read from that offset, deduplicated by those marks, and written to the same partition of the
   clean topic, together with the new state, in one transaction. Both become visible or neither.

So an egress may be killed anywhere, and started twice by mistake: the second one wins, the first one ends.
It is crash-only: on any doubt the process exits and its supervisor starts another, which resumes at 1.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lockstep.errors import LockstepError
from lockstep.log.failover import RECONNECT
from lockstep.log.options import read_options
from lockstep.observe import logger as logs
from lockstep.replicas.crash import crash_point
from lockstep.replicas.deduplicate import Marks, well_formed
from lockstep.replicas.egress_state import EgressState, read_state
from lockstep.replicas.topics import create_topic
from lockstep.spark.identity import IDENTITY_HEADER

logger = logs.get_logger(__name__)

_BATCH = 2000
"""Most records that one transaction takes: a bound on memory and on what a fail-over repeats."""
_SETTLE_SECONDS = 0.006
"""Between two transactions of one id. Kafka goes on writing a commit's markers after it has acknowledged it; a
transaction that begins too early is sent away, and librdkafka comes back only 20 ms later. At 2,000 outputs a
second 6 ms gave the lowest median of 0, 3 and 6 (`lockstep bench latency` shows it)."""
_STATE_EVERY = 1.0
"""Seconds after which progress over nothing but duplicates is written down too."""
_ABORT_SECONDS = 5.0


class Fenced(LockstepError):
    """A newer egress took this one's place."""


@dataclass(frozen=True)
class EgressSettings:
    bootstrap_servers: str
    source: str
    clean: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """librdkafka options that say how to reach and trust the broker."""
    transaction_timeout_ms: int = 10_000

    @property
    def state_topic(self) -> str:
        return f"{self.name}.egress"

    @property
    def connection(self) -> dict[str, Any]:
        return {**self.options, "bootstrap.servers": self.bootstrap_servers}


class Egress:
    """All partitions of one output topic. `run` returns when `stop` is set, or raises."""

    def __init__(self, settings: EgressSettings) -> None:
        self._settings = settings
        self.workers: list[PartitionEgress] = []

    def run(self, stop: threading.Event) -> None:
        count = prepare_topics(self._settings)
        failures: list[BaseException] = []
        halt = threading.Event()
        self.workers = [PartitionEgress(self._settings, partition) for partition in range(count)]

        def work(worker: PartitionEgress) -> None:
            try:
                worker.run(halt)
            except BaseException as error:
                failures.append(error)
                halt.set()

        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in self.workers]
        for thread in threads:
            thread.start()
        while not stop.wait(0.1) and not halt.is_set():
            pass
        halt.set()
        for thread in threads:
            thread.join(self._settings.transaction_timeout_ms / 1000)
        if failures:  # that a newer egress took over explains whatever else went wrong
            raise next((one for one in failures if isinstance(one, Fenced)), failures[0])

    def status(self) -> dict[str, Any]:
        ready = bool(self.workers) and all(worker.ready for worker in self.workers)
        return {
            "state": "running" if ready else "starting",
            "written": sum(worker.written for worker in self.workers),
            "duplicates": sum(worker.duplicates for worker in self.workers),
            "positions": {str(worker.partition): worker.next_offset for worker in self.workers},
        }


class PartitionEgress:
    """One output partition: one transactional id, one consumer, one thread."""

    def __init__(self, settings: EgressSettings, partition: int) -> None:
        self._settings = settings
        self.partition = partition
        self.next_offset = OFFSET_BEGINNING
        self.written = 0
        self.duplicates = 0
        self.ready = False
        self._marks = Marks()
        self._saved_offset = OFFSET_BEGINNING

    def run(self, stop: threading.Event) -> None:
        settings = self._settings
        producer: Any = Producer(
            {
                **RECONNECT,
                **settings.connection,
                "transactional.id": f"lockstep.egress.{settings.name}.{self.partition}",
                "transaction.timeout.ms": settings.transaction_timeout_ms,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "queue.buffering.max.kbytes": 65536,
                "compression.type": "lz4",
            },
            logger=logger,
        )
        _until(stop, producer.init_transactions)
        crash_point("egress.after-fence")
        state = read_state(settings.connection, settings.state_topic, settings.source, self.partition)
        if state is not None:
            self._marks = Marks.decode(state.marks)
            self.next_offset = self._saved_offset = state.next_offset
        consumer: Any = Consumer(
            {
                "fetch.queue.backoff.ms": 10,
                **RECONNECT,
                **settings.connection,
                "group.id": settings.state_topic,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": 16384,
            },
            logger=logger,
        )
        try:
            consumer.assign([TopicPartition(settings.source, self.partition, self.next_offset)])
            self.ready = True
            saved_at = time.monotonic()
            while not stop.is_set():
                accepted = self._accept(_fetch(consumer))
                behind = self.next_offset > max(0, self._saved_offset)
                if accepted or (behind and time.monotonic() - saved_at > _STATE_EVERY):
                    self._commit(producer, accepted, stop)
                    time.sleep(_SETTLE_SECONDS)
                    saved_at = time.monotonic()
        finally:
            consumer.close()

    def _accept(self, messages: list[Any]) -> list[tuple[Any, bytes]]:
        accepted = []
        for message in messages:
            if message.error() is not None:
                _raise_unless_transient(message.error(), self._settings.source)
                continue
            self.next_offset = message.offset() + 1
            identity = next((v for n, v in message.headers() or () if n == IDENTITY_HEADER), None)
            if not well_formed(identity):
                logger.warning("%s: passing over a record that no site wrote", self._settings.source)
            elif self._marks.accept(identity):
                accepted.append((message, identity))
            else:
                self.duplicates += 1
        return accepted

    def _commit(self, producer: Any, accepted: list[tuple[Any, bytes]], stop: threading.Event) -> None:
        settings = self._settings
        state = EgressState.of(settings.source, self.next_offset, self._marks)
        try:
            producer.begin_transaction()
            for number, (message, identity) in enumerate(accepted):
                self._produce(
                    producer,
                    settings.clean,
                    message.value(),
                    message.key(),
                    headers=[(IDENTITY_HEADER, identity)],
                    timestamp=max(0, message.timestamp()[1]),
                )
                if number == 0:
                    producer.poll(0)
                    crash_point("egress.between-produces")
            self._produce(producer, settings.state_topic, state.encode(), b"state")
            crash_point("egress.before-commit")
            _until(stop, producer.commit_transaction)
            crash_point("egress.after-commit")
        except KafkaException as error:
            raise explain(producer, error, self.partition) from error
        self._saved_offset = self.next_offset
        self.written += len(accepted)

    def _produce(
        self, producer: Any, topic: str, value: bytes | None, key: bytes | None, **more: Any
    ) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition=self.partition, **more)
                return
            except BufferError:  # as much in flight as we allow: wait until some of it is done
                producer.poll(0.01)


def prepare_topics(settings: EgressSettings, timeout: float = 15.0) -> int:
    """Create what is missing, refuse what does not fit; the number of output partitions."""
    admin = AdminClient(settings.connection)
    try:
        known = admin.list_topics(timeout=timeout).topics
    except KafkaException as error:
        raise LockstepError(
            f"no Kafka broker answers at {settings.bootstrap_servers}", hint="is it running?"
        ) from error
    if settings.source not in known:
        raise LockstepError(f"there is no topic {settings.source}", hint="start the run before its egress")
    count = len(known[settings.source].partitions)
    wanted = {settings.clean: {}, settings.state_topic: {"cleanup.policy": "compact"}}
    for topic, config in wanted.items():
        if topic in known:
            found = len(known[topic].partitions)
        else:
            found = create_topic(admin, NewTopic(topic, count, config=config), timeout)
        if found != count:
            raise LockstepError(
                f"{topic} has {found} partitions, {settings.source} has {count}",
                hint="partitions of a run's topics are frozen: use a new topic, or a new run",
            )
    return count


def _fetch(consumer: Any) -> list[Any]:
    first = consumer.poll(0.05)
    return [] if first is None else [first, *consumer.consume(_BATCH - 1, 0)]


def _until(stop: threading.Event, call: Any) -> None:
    """Repeat a transactional call while Kafka says that repeating is safe (a broker that restarts)."""
    while True:
        try:
            call(5.0)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or stop.is_set():
                raise


def explain(producer: Any, error: KafkaException, partition: int) -> LockstepError:
    """Why a transaction failed. A broker may answer a fenced producer with another error first: ask it again."""
    is_fenced = _is_fenced(error)
    if not is_fenced:
        try:
            producer.abort_transaction(_ABORT_SECONDS)
        except KafkaException as second:
            is_fenced = _is_fenced(second)
    if is_fenced:
        return Fenced(f"a newer egress took over partition {partition}", hint="only one is needed")
    return LockstepError(
        f"egress of partition {partition} failed: {error.args[0].str()}", hint="it will be restarted"
    )


def _is_fenced(error: KafkaException) -> bool:
    fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    return error.args[0].code() in fenced


def _raise_unless_transient(error: Any, topic: str) -> None:
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise LockstepError(
            f"{topic}: outputs that the egress has not read yet are gone",
            hint="retention is too short for how long the egress was away",
        )
    if error.fatal() or error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
        raise LockstepError(f"{topic}: {error.str()}")


def main(arguments: list[str] | None = None) -> int:
    """`python -m lockstep.replicas.egress`: runs until SIGTERM; exit 3 when a newer egress took over."""
    parser = argparse.ArgumentParser(prog="lockstep.replicas.egress", description=main.__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--source", required=True, help="the topic that the sites write to")
    parser.add_argument("--clean", required=True, help="the topic to write each output to, once")
    parser.add_argument("--name", required=True, help="names the state: one egress per name is active")
    parser.add_argument(
        "--options", type=read_options, default={}, help="a file with librdkafka options as JSON"
    )
    parser.add_argument("--status", type=Path, help="file that is rewritten with the state every 250 ms")
    given = parser.parse_args(arguments)
    logs.configure()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    settings = EgressSettings(given.bootstrap_servers, given.source, given.clean, given.name, given.options)
    egress = Egress(settings)
    if given.status is not None:
        threading.Thread(target=_report, args=(egress, given.status), daemon=True).start()
    try:
        egress.run(stop)
    except Fenced as error:
        print(f"lockstep egress: {error}", file=sys.stderr)
        return 3
    except LockstepError as error:
        print(f"lockstep egress: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _report(egress: Egress, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"pid": os.getpid(), "updated": time.time(), **egress.status()}))
        temporary.replace(path)
        time.sleep(0.25)


if __name__ == "__main__":
    sys.exit(main())
