"""How a client of librdkafka finds a partition's new leader soon after a broker has died.

It asks for the leaders at once, and learns that it is still the dead one: Kafka elects another only when the
broker's session has ended. After that it asks again only when told so, and was found to stand still for two to
five seconds. So whoever polls a client asks for it, for a while. (To look all the time would do, and makes clients
stall for a quarter of a second now and then.)
"""

import time
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException

RECONNECT = MappingProxyType({"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100})
LOOK_SECONDS = 0.1
SEARCH_SECONDS = 30.0
"""Longer than the session of a broker, 9 s unless somebody has set it."""


class LeaderSearch:
    """`lost` is for the client's `error_cb`; `look` is for the thread that polls the client and closes it."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._looked_at = float("-inf")

    def lost(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            self._until = time.monotonic() + SEARCH_SECONDS

    def look(self, client: Any, topics: Iterable[str]) -> None:
        """Ask for the leaders of these topics, if it is time to."""
        now = time.monotonic()
        if now < self._until and now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            for topic in topics:
                try:
                    client.list_topics(topic, timeout=LOOK_SECONDS)
                except KafkaException:
                    return  # nobody answers: later
