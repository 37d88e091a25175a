"""A client that has lost a broker asks for the leaders for a while; one that has not leaves the cluster alone."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from lockstep.log import failover
from lockstep.log.failover import LOOK_SECONDS, SEARCH_SECONDS, LeaderSearch

LOST = KafkaError(KafkaError._TRANSPORT)


class Asked:
    """What a client was asked, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.now = 0.0
        self.answers = True

    def monotonic(self) -> float:
        return self.now

    def list_topics(self, topic: str, timeout: float) -> None:
        self.topics.append(topic)
        if not self.answers:
            raise KafkaException(LOST)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr(failover, "time", asked)
    return asked


def test_leaders_are_asked_for_after_a_loss_only_and_not_for_ever(client: Asked) -> None:
    search = LeaderSearch()
    search.look(client, ["a"])
    search.lost(KafkaError(KafkaError._MAX_POLL_EXCEEDED))
    search.look(client, ["a"])
    assert client.topics == []
    search.lost(LOST)
    search.look(client, ["a", "b"])
    search.look(client, ["a", "b"])
    assert client.topics == ["a", "b"], "once in a while"
    client.now += 2 * LOOK_SECONDS
    search.look(client, ["a"])
    assert client.topics == ["a", "b", "a"]
    client.now += SEARCH_SECONDS
    search.look(client, ["a"])
    assert client.topics == ["a", "b", "a"]


def test_where_nobody_answers_the_caller_is_not_held_for_every_topic(client: Asked) -> None:
    search = LeaderSearch()
    client.answers = False
    search.lost(LOST)
    search.look(client, ["a", "b"])
    assert client.topics == ["a"]
