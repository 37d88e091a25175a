"""The one place that finds free ports.

Below the range that the kernel uses for outgoing connections: a port from inside it can be taken by any client
while its server is down, even by a client that tries to reach that very server.
"""

import random
import socket
from pathlib import Path

from lockstep.errors import LockstepError

LOOPBACK = "127.0.0.1"


def free_port(old: int, chosen: set[int]) -> int:
    """The old port if it is free, else a free one that is not among those `chosen` already."""
    if old and old not in chosen and is_free(old):
        return old
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _attempt in range(200):
        port = random.randrange(10_240, max(lowest_outgoing, 10_241))
        if port not in chosen and is_free(port):
            return port
    with socket.socket() as asked:
        asked.bind((LOOPBACK, 0))
        return int(asked.getsockname()[1])


def free_ports(count: int) -> list[int]:
    chosen: set[int] = set()
    while len(chosen) < count:
        chosen.add(free_port(0, chosen))
    return list(chosen)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except PermissionError as error:
            raise LockstepError(f"port {port} needs privileges", hint="choose one above 1023") from error
        except OSError:
            return False
        return True
