"""BetterCloud's load: events of 250 customers and the control events that install rules, to two Kafka topics.

    python examples/bettercloud/feed.py --bootstrap-servers HOST:PORT --rate 1000 --seconds 60

One document in twenty is a lunch menu, and half of those are shared with the public; the others are finances, of
which one in twenty is: 7.25% of the events meet the rules. Control events come at 5 a second; one in five is for
everybody. What is sent depends on the seed alone. The times in it are those at which an event was **due**, so a
late feed counts as latency, not as calm.
"""

import argparse
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

EVERYBODY = "deadbeef-dead-beef-dead-beefdeadbeef"
CUSTOMERS = tuple(f"customer-{number:03}" for number in range(250))
CONTROLS_PER_SECOND = 5
LUNCH_MENUS, PUBLIC_LUNCH_MENUS, PUBLIC_FINANCES, FOR_EVERYBODY = 0.05, 0.5, 0.05, 0.2
TICK_SECONDS = 0.002
"""Records that are due within a tick are sent together: waking up for each would cost half a core."""
RULES = (
    {"path": "$.actionType", "check": "equals", "value": "DocumentSharedEvent"},
    {"path": "$.audience", "check": "equals", "value": "public"},
)


class Record(NamedTuple):
    """`due` is in seconds after the feed's beginning."""

    due: float
    is_control: bool
    key: str
    value: str


@dataclass(frozen=True)
class Feed:
    """What is sent: a function of these four alone, given the moment of the beginning."""

    rate: int
    seconds: float
    seed: int = 1
    controls_per_second: int = CONTROLS_PER_SECOND

    def records(self, began_ms: int) -> Iterator[Record]:
        """All records in the order in which they are due."""
        events, controls = random.Random(f"events {self.seed}"), random.Random(f"controls {self.seed}")
        sent_events = sent_controls = 0
        while True:
            event_due = sent_events / self.rate
            control_due = sent_controls / self.controls_per_second if self.controls_per_second else event_due
            due = min(event_due, control_due)
            if due >= self.seconds:
                return
            if self.controls_per_second and control_due <= event_due:
                yield control(controls, due, began_ms)
                sent_controls += 1
            else:
                yield event(events, due, began_ms)
                sent_events += 1


def event(rng: random.Random, due: float, began_ms: int) -> Record:
    customer = rng.choice(CUSTOMERS)
    lunch_menu = rng.random() < LUNCH_MENUS
    public = rng.random() < (PUBLIC_LUNCH_MENUS if lunch_menu else PUBLIC_FINANCES)
    payload = {
        "provider": "GDrive",
        "title": "lunch-menu" if lunch_menu else "finances",
        "audience": "public" if public else f"employee-{rng.randrange(10_000)}@{customer}.com",
        "type": "Spreadsheet",
        "actionType": "DocumentSharedEvent",
    }
    value = {
        "customerId": customer,
        "payload": json.dumps(payload),
        "ingestedAt": began_ms + round(due * 1000),
        "receivedAt": 0,
    }
    return Record(due, False, customer, json.dumps(value))


def control(rng: random.Random, due: float, began_ms: int) -> Record:
    customer = EVERYBODY if rng.random() < FOR_EVERYBODY else rng.choice(CUSTOMERS)
    value = {
        "rules": RULES,
        "customerId": customer,
        "alertId": "PublicDocsShared",
        "alertName": "PublicDocsShared",
        "alertDescription": "Documents that anybody can read",
        "threshold": 1,
        "bootstrapCustomerId": None,
        "createdAt": began_ms + round(due * 1000),
    }
    return Record(due, True, customer, json.dumps(value))


def create_topics(bootstrap_servers: str, partitions: dict[str, int]) -> None:
    """Those that are not there yet."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    there = admin.list_topics(timeout=20).topics
    missing = [NewTopic(name, count) for name, count in partitions.items() if name not in there]
    for future in (admin.create_topics(missing) if missing else {}).values():
        try:
            future.result(20)
        except KafkaException as error:
            raise SystemExit(f"a topic cannot be created: {error}") from None


def send(feed: Feed, bootstrap_servers: str, events: str, controls: str, stopping: threading.Event) -> int:
    """Send everything when it is due, until the end or until `stopping`; how many were acknowledged."""
    # Java clients and Lockstep partition by murmur2, librdkafka by CRC32 unless told otherwise.
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
    )
    began, began_ms = time.monotonic(), round(time.time() * 1000)
    sent = 0
    for record in feed.records(began_ms):
        early = began + record.due - time.monotonic()
        if early > 0:
            producer.poll(0)
            if stopping.wait(max(early, TICK_SECONDS)):
                break
        while True:
            try:
                producer.produce(controls if record.is_control else events, record.value, record.key)
                break
            except BufferError:
                producer.poll(0.01)
        sent += 1
    if left := producer.flush(60):
        raise SystemExit(f"{left} records were not acknowledged within 60 s")
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--events", default="customer-events", help="topic of the events")
    parser.add_argument("--controls", default="control-events", help="topic of the control events")
    parser.add_argument("--partitions", type=int, default=1, help="of the events, if they have to be created")
    parser.add_argument("--rate", type=int, default=1000, help="events a second")
    parser.add_argument("--controls-per-second", type=int, default=CONTROLS_PER_SECOND)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count-file", type=Path, help="write here how many records were sent")
    arguments = parser.parse_args()
    stopping = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopping.set())
    create_topics(
        arguments.bootstrap_servers, {arguments.events: arguments.partitions, arguments.controls: 1}
    )
    feed = Feed(arguments.rate, arguments.seconds, arguments.seed, arguments.controls_per_second)
    sent = send(feed, arguments.bootstrap_servers, arguments.events, arguments.controls, stopping)
    if arguments.count_file is not None:
        arguments.count_file.write_text(str(sent))
    print(f"{sent} records sent")


if __name__ == "__main__":
    main()
