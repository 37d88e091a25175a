"""How librdkafka's clients find a partition's new leader soon after a broker has died.

A client whose broker is gone asks for the leaders at once, and learns that it is still the dead one: Kafka elects
another only when the broker's session has ended. After that it would ask again only when told so, and was found
to stand still for two to five seconds. So it looks all the time: ten small questions a second.
"""

from types import MappingProxyType

RECONNECT = MappingProxyType({"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100})
FAILOVER = MappingProxyType({**RECONNECT, "topic.metadata.refresh.interval.ms": 100})
