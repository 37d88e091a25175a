"""A message every 100 ms, and the one who reads them (RT-ZooKeeper, section 7.3).

A message's latency runs from the moment it was **due** until the consumer has it, so that a producer that had
to wait hides nothing. Producer and consumer are librdkafka's, quick to look for another leader; every message
is acknowledged by all replicas in sync.
"""

import threading
import time
from types import TracebackType
from typing import Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from lockstep.bench.coordination_kafka_cluster import KafkaPair
from lockstep.errors import LockstepError

PERIOD_SECONDS: Final = 0.1
SILENCE_SECONDS: Final = 2 * PERIOD_SECONDS
_ENOUGH = 10


class Traffic:
    """Messages through the one partition of `topic`, from now until `stop`."""

    def __init__(self, kafka: KafkaPair, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {**kafka.options, "acks": "all", "linger.ms": 0, "message.timeout.ms": 120_000, "retries": 10_000}
        )
        self._consumer = Consumer(
            {
                **kafka.options,
                "group.id": f"traffic-{topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._due: list[float] = []
        self._arrived: dict[int, float] = {}
        self._acknowledged: set[int] = set()
        self.duplicates = 0
        self._is_running = True
        self._is_sending = True
        self._threads = [
            threading.Thread(target=target, name=f"traffic-{target.__name__}", daemon=True)
            for target in (self._send, self._read)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_sending = self._is_running = False
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    def worst(self, since: float) -> float:
        """The longest latency of the messages due since then, in seconds; one on its way counts as it is now."""
        now = time.monotonic()
        late = [self._arrived.get(number, now) - due for number, due in enumerate(self._due) if due >= since]
        return max(late, default=0.0)

    def wait_flowing(self, since: float, seconds: float = 90.0) -> None:
        """Wait until all that was due since then has come, and the last second's messages came at once."""
        deadline = time.monotonic() + seconds
        while True:
            due = list(self._due)
            first = next((number for number, at in enumerate(due) if at >= since), len(due))
            recent = range(max(first, len(due) - _ENOUGH - 1), len(due) - 1)  # the very last is on its way
            if (
                len(recent) >= _ENOUGH
                and all(number in self._arrived for number in range(first, len(due) - 1))
                and all(self._arrived[number] - due[number] < PERIOD_SECONDS for number in recent)
            ):
                return
            if time.monotonic() > deadline:
                missing = [number for number in range(first, len(due) - 1) if number not in self._arrived]
                raise LockstepError(
                    f"messages do not flow after {seconds:.0f} s: {len(missing)} of {len(due)} have not come, "
                    f"the first is {missing[:1]}, {len(self._acknowledged)} are acknowledged",
                    hint="read the brokers' logs",
                )
            time.sleep(0.02)

    def finish(self, seconds: float = 90.0) -> int:
        """Send no more, wait for what is on its way; how many acknowledged messages never came."""
        self._is_sending = False
        self._threads[0].join()
        deadline = time.monotonic() + seconds
        while self._producer.flush(0.1) and time.monotonic() < deadline:
            pass
        while self._acknowledged - self._arrived.keys() and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(self._acknowledged - self._arrived.keys())

    @property
    def sent(self) -> int:
        return len(self._due)

    def _send(self) -> None:
        began = time.monotonic()
        while self._is_sending:
            number = len(self._due)
            due = began + number * PERIOD_SECONDS
            while (early := due - time.monotonic()) > 0 and self._is_sending:
                self._producer.poll(min(early, 0.02))
            self._due.append(due)
            self._producer.produce(self._topic, b"%d" % number, partition=0, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            self._acknowledged.add(int(value))

    def _read(self) -> None:
        offset, heard = OFFSET_BEGINNING, time.monotonic()
        while self._is_running:
            message = self._consumer.poll(0.02)
            if message is None or message.error() is not None:
                if time.monotonic() - heard > SILENCE_SECONDS:
                    # librdkafka 2.x may go on asking a dead leader whether the offset is valid, for ever.
                    self._consumer.assign([TopicPartition(self._topic, 0, offset)])
                    heard = time.monotonic()
                continue
            heard, offset = time.monotonic(), (message.offset() or 0) + 1
            value = message.value()
            assert value is not None
            number = int(value)
            if number in self._arrived:
                self.duplicates += 1
            else:
                self._arrived[number] = time.monotonic()
