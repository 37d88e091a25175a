"""A server with the list and the id that it is given, as if on another machine: it listens on ports of its own.

python elsewhere.py ID SERVERS FOLDER PEER_PORT CLIENT_PORT
"""

import sys
from pathlib import Path

from lockstep.coordination import membership
from lockstep.coordination.config import NodeConfig
from lockstep.coordination.node import Node
from lockstep.protocol.frames import Address
from lockstep.protocol.runner import serve


def build() -> Node:
    server, servers, folder, peer_port, client_port = sys.argv[1:]
    node = Node(NodeConfig(int(server), membership.parse(servers), Path(folder), tick_ms=500))
    node._listen = (Address("127.0.0.1", int(peer_port)), Address("127.0.0.1", int(client_port)))
    return node


if __name__ == "__main__":
    serve(build)
