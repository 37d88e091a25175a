"""Free ports: distinct, really free, and out of the reach of outgoing connections."""

import socket
from pathlib import Path

from lockstep.ports import LOOPBACK, free_port, free_ports, is_free


def test_ports_lie_below_those_that_connections_are_given() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    taken = free_ports(20)
    assert len(set(taken)) == 20
    assert max(taken) < first


def test_an_old_port_is_kept_while_it_is_free() -> None:
    port = free_port(0, set())
    assert free_port(port, set()) == port
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)
        assert free_port(port, set()) != port
