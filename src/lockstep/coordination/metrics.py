"""Prometheus metrics of one server: the figures of `mntr`, under the names of this project."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lockstep.coordination.zab.interface import Following, Leading

if TYPE_CHECKING:
    from lockstep.coordination.node import Node


class Collector:
    """Reads the figures when it is asked: nothing is counted twice, and nothing on a request's way."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def collect(self) -> Iterable[Metric]:
        service = self._node.service
        server = [str(self._node.config.server)]
        gauges = {
            "znodes": ("Nodes in the tree.", len(service.tree.nodes)),
            "sessions": ("Live sessions of the ensemble.", len(service.tree.sessions)),
            "clients": ("Connections to this server.", len(service.clients)),
            "watches": ("Watches set on this server.", len(service.watches)),
            "outstanding_writes": ("Writes that wait for their answer.", service.outstanding),
            "zxid": ("The last transaction applied.", service.tree.last_zxid),
            "is_leader": ("1 on the leader.", int(isinstance(service.role, Leading))),
            "is_serving": ("1 while there is a leader.", int(isinstance(service.role, Leading | Following))),
            "synced_followers": ("Followers that are up to date.", self._node.machine.synced_followers),
            "election_milliseconds": (
                "Its last election, to the decision.",
                self._node.phases.last_election_ms,
            ),
            "recovery_milliseconds": ("From there to service.", self._node.phases.last_recovery_ms),
            "write_milliseconds_max": ("The longest wait for a write.", service.latency.most),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"lockstep_coordination_{name}", text, labels=["server"])
            gauge.add_metric(server, value)
            yield gauge
        counters = {
            "requests": ("Frames from clients.", service.received),
            "replies": ("Frames to clients.", service.sent),
            "transactions": ("Transactions applied.", service.applied),
            "elections": ("How often this server looked for a leader.", service.elections),
            "writes": ("Writes answered to clients of this server.", service.latency.count),
            "write_seconds": ("Time that clients waited for them.", service.latency.total / 1000),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"lockstep_coordination_{name}", text, labels=["server"])
            counter.add_metric(server, value)
            yield counter


def expose(node: "Node", port: int, host: str = "127.0.0.1") -> None:
    registry = CollectorRegistry()
    registry.register(Collector(node))
    start_http_server(port, host, registry)
