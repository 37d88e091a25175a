"""Questions about offsets, where librdkafka's answers are not to be taken literally."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from lockstep.errors import LockstepError
from lockstep.log.errors import Unavailable
from lockstep.log.kafka_admin import Admin, TopicIdentity
from lockstep.replicas.manifest import earliest

LOST = OFFSET_INVALID
"""What librdkafka gives, as if it were an answer, for a partition whose broker it lost while asking."""


class Client:
    """Answers with these offsets, the last of them again and again."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = list(offsets)
        self.asked = 0

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Any]:
        offset = self.offsets[min(self.asked, len(self.offsets) - 1)]
        self.asked += 1
        answers = {}
        for place in wanted:
            answers[place] = Future[Any]()
            answers[place].set_result(SimpleNamespace(offset=offset))
        return answers

    def list_topics(self, timeout: float) -> None: ...


def admin(client: Client) -> Admin:
    made = Admin({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, request_seconds=0.05)
    made._client = client
    made.known["topic"] = TopicIdentity("id", 1, 1_000)
    return made


def test_an_offset_that_is_none_is_asked_for_again() -> None:
    client = Client(LOST, LOST, 7)
    assert asyncio.run(admin(client).offsets("topic", first=False)) == {0: 7}
    assert client.asked == 3


def test_a_partition_that_never_answers_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        asyncio.run(admin(Client(LOST)).offsets("topic", first=True))


def test_where_the_ends_are_asked_for_all_the_time_no_answer_is_no_end() -> None:
    async def ends(client: Client) -> dict[tuple[str, int], int]:
        return await admin(client).ends([("topic", 0)], 1.0)

    assert asyncio.run(ends(Client(LOST))) == {}
    assert asyncio.run(ends(Client(7))) == {("topic", 0): 7}


def test_a_run_does_not_begin_at_an_offset_that_is_none() -> None:
    assert earliest(Client(7), "topic", 1) == (7,)
    with pytest.raises(LockstepError, match="does not answer"):
        earliest(Client(LOST), "topic", 1)
