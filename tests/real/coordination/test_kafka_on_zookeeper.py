"""Kafka 3.9.1, the last line that needs ZooKeeper, on our ensemble: the paper's section 7, in short.

`lockstep bench coordination-kafka` measures it; here it must work: two brokers with replication 2, a message every
100 ms, while our leader, and then our leader and the leading broker, die.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.bench.coordination_kafka_cluster import KafkaPair
from lockstep.bench.coordination_kafka_traffic import Traffic
from lockstep.coordination.ensemble import Ensemble

pytestmark = pytest.mark.real

TICK_MS = 1000


@pytest.fixture
def kafka(ensemble: Ensemble, tmp_path: Path) -> Iterator[KafkaPair]:
    with KafkaPair(tmp_path / "kafka", ensemble.connect_string, tick_ms=TICK_MS, patient=False) as running:
        yield running


def test_7_topics_and_messages_live_through_the_death_of_our_leader_and_of_a_broker(
    ensemble: Ensemble, kafka: KafkaPair
) -> None:
    kafka.create_topic("mytopic")
    with Traffic(kafka, "mytopic") as traffic:
        traffic.wait_flowing(time.monotonic())

        killed = time.monotonic()
        leader = ensemble.wait_leader()
        ensemble.kill(leader)
        kafka.create_topic("created-without-a-leader")
        traffic.wait_flowing(killed)
        assert traffic.worst(killed) < 2 * TICK_MS / 1000, "messages do not pass through the ensemble"

        ensemble.start_server(leader)
        ensemble.wait_serving(leader)
        killed = time.monotonic()
        ensemble.kill(ensemble.wait_leader())
        kafka.kill(kafka.wait_replicated("mytopic"))
        traffic.wait_flowing(killed)
        assert kafka.leader("mytopic") in kafka.running
        assert traffic.finish() == 0, "acknowledged messages are lost"
