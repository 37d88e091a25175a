"""The broker dies in the middle: readers wait for it, and afterwards nothing is missing or doubled."""

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from standin import outputs
from test_egress import INPUTS, PARTITIONS, Scene

from lockstep import process
from lockstep.log.broker import Broker
from lockstep.replicas.consumer import Consumer

pytestmark = pytest.mark.real


def test_a_broker_that_dies_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("output", PARTITIONS)])["output"].result(20)
        scene = Scene(broker.bootstrap_servers, "output", tmp_path)
        try:
            read: list[bytes] = []
            enough = threading.Event()

            def follow() -> None:
                with Consumer(
                    broker.bootstrap_servers, "output", "follower", commit_interval=0.1
                ) as consumer:
                    while not enough.is_set():
                        read.extend(record.value or b"" for record in consumer.records(0.1))

            follower = threading.Thread(target=follow)
            follower.start()
            scene.site("site-1", pause=0.002)
            scene.site("site-2", pause=0.002)
            egress = scene.egress()
            deadline = time.monotonic() + 60
            while len(read) < 300:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            broker.kill()
            broker.restart()
            due = [value for _, _, value, _ in outputs(scene.seed, INPUTS, PARTITIONS)]
            if egress.poll() is not None:  # crash-only: its supervisor would start it again
                scene.egress()
            clean = scene.clean_records(len(due), deadline=90)
            while len(read) < len(due) and time.monotonic() < deadline + 90:
                time.sleep(0.05)
            enough.set()
            follower.join(20)
            assert sorted(value for _, _, value in clean) == sorted(due)
            assert sorted(read) == sorted(due)
        finally:
            for started in scene.started:
                process.kill(started)
