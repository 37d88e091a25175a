"""The list of servers of an ensemble, and what a data folder remembers of it.

    1=127.0.0.1:2888:2181,2=127.0.0.1:2889:2182,3=127.0.0.1:2890:2183

Each server: its id, the port for the other servers, the port for clients. All servers are given the same list;
its fingerprint is part of every greeting between them, so that a wrong list shows at once.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from lockstep.coordination.zab.settings import MAX_SERVERS
from lockstep.errors import UsageError
from lockstep.protocol.frames import Address

_FORM: Final = "write id=host:port-for-servers:port-for-clients, separated by commas"


class Member(Struct, frozen=True):
    host: str
    peer_port: int
    client_port: int

    @property
    def peer(self) -> Address:
        return Address(self.host, self.peer_port)

    @property
    def client(self) -> Address:
        return Address(self.host, self.client_port)


def parse(text: str) -> dict[int, Member]:
    members: dict[int, Member] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, where = part.partition("=")
        host, _, ports = where.partition(":")
        if where.startswith("["):
            host, _, ports = where[1:].partition("]:")
        try:
            server = int(name)
            peer_port, client_port = (int(port) for port in ports.split(":"))
        except ValueError:
            raise UsageError(f"{part!r} is not a server of an ensemble", hint=_FORM) from None
        if not 1 <= server <= 253 or not host or not all(0 < p < 65536 for p in (peer_port, client_port)):
            raise UsageError(f"{part!r}: ids lie in 1..253, ports in 1..65535", hint=_FORM)
        if server in members:
            raise UsageError(f"two servers have the id {server}", hint="give each server an id of its own")
        members[server] = Member(host, peer_port, client_port)
    if not 1 <= len(members) <= MAX_SERVERS:
        raise UsageError(f"an ensemble has 1 to {MAX_SERVERS} servers, not {len(members)}", hint=_FORM)
    peers = [member.peer for member in members.values()]
    if len(set(peers)) < len(peers):
        raise UsageError("two servers have one address", hint="give each server a port of its own")
    return members


def format_list(members: Mapping[int, Member]) -> str:
    parts = (f"{i}={m.host}:{m.peer_port}:{m.client_port}" for i, m in sorted(members.items()))
    return ",".join(parts)


def fingerprint(members: Mapping[int, Member], name: str = "") -> str:
    """The same on all servers that were given the same list (and the same name, if there is one)."""
    peers = [f"{server}={member.host}:{member.peer_port}" for server, member in sorted(members.items())]
    return hashlib.sha256("\n".join([name, *peers]).encode()).hexdigest()[:16]


def config_text(members: Mapping[int, Member]) -> str:
    """What `/zookeeper/config` reads."""
    lines = [
        f"server.{server}={m.host}:{m.peer_port}:{m.peer_port}:participant;{m.host}:{m.client_port}"
        for server, m in sorted(members.items())
    ]
    return "\n".join([*lines, "version=0"])


class _Mark(Struct, frozen=True):
    server: int
    servers: list[int]
    name: str


def claim(folder: Path, server: int, members: Mapping[int, Member], name: str = "") -> None:
    """Mark a new data folder as this server's, or refuse one that belongs to another.

    Addresses may change between two starts; ids, and how many servers there are, may not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "server.json"
    mine = _Mark(server, sorted(members), name)
    try:
        found = msgspec.json.decode(mark.read_bytes(), type=_Mark)
    except FileNotFoundError:
        temporary = folder / "server.json.new"
        temporary.write_bytes(msgspec.json.encode(mine))
        temporary.replace(mark)
        return
    except msgspec.DecodeError as error:
        raise UsageError(f"{mark} is damaged: {error}", hint="name the right data folder") from error
    if found != mine:
        raise UsageError(
            f"{folder} belongs to server {found.server} of the ensemble {found.name or 'without a name'} "
            f"with the servers {found.servers}, not to server {server} of {sorted(members)}",
            hint="name the right data folder, or an empty one",
        )
