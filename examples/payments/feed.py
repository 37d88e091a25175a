"""Payments of a hundred customers, at a steady rate, to a Kafka topic.

python examples/payments/feed.py --bootstrap-servers HOST:PORT
"""

import argparse
import json
import random
import time

from confluent_kafka import Producer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", default="payments")
    parser.add_argument("--rate", type=int, default=200, help="payments a second")
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    # Java clients and Lockstep partition by murmur2, librdkafka by CRC32 unless told otherwise.
    producer = Producer(
        {"bootstrap.servers": arguments.bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 1}
    )
    start = time.monotonic()
    for number in range(int(arguments.rate * arguments.seconds)):
        customer = f"customer-{random.randrange(100)}"
        payment = {"customer": customer, "cents": random.randrange(100, 10_000)}
        producer.produce(arguments.topic, json.dumps(payment), key=customer)
        producer.poll(0)
        time.sleep(max(0.0, start + number / arguments.rate - time.monotonic()))
    producer.flush()
    print(f"{number + 1} payments sent")


if __name__ == "__main__":
    main()
