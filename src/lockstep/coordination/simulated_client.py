"""A client in the service's simulation: it speaks the protocol byte by byte and remembers what it was promised.

It knows nothing of how a service works. The names of the promises are those of `service_simulation`.
"""

from collections import Counter, deque
from collections.abc import Mapping
from random import Random
from typing import Protocol

from lockstep.coordination.clients import Client
from lockstep.coordination.service import Service
from lockstep.coordination.tree import OPEN_ACL
from lockstep.coordination.wire.codes import Code, Mode, Op
from lockstep.coordination.wire.jute import Reader, pack_buffer, pack_int, pack_string
from lockstep.coordination.wire.records import (
    REPLY_HEADER,
    Connect,
    Create,
    SetWatches,
    decode_connect_reply,
    encode_connect,
    encode_request,
    pack_create,
    pack_multi,
    pack_set_watches,
    read_stat,
)

PATHS = ("/k0", "/k1", "/k2")
TICK_MS = 100


class Violation(AssertionError):
    """A promise was broken; the text begins with its name."""


class Port:
    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.is_closed = False

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        self.is_closed = True

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class Surroundings(Protocol):
    """What a client meets: servers, time, chance, and a count of everything."""

    chance: Random
    now: int
    counts: Counter[str]
    next_value: int

    @property
    def services(self) -> Mapping[int, Service]: ...


class SimulatedClient:
    """Speaks the protocol byte by byte, and remembers what it was promised."""

    def __init__(self, world: Surroundings, number: int) -> None:
        self.world = world
        self.number = number
        self.server = 0
        self.acknowledged: list[bytes] = []
        self._port = Port()
        self._client: Client | None = None
        self._xid = 0
        self.outstanding: deque[tuple[int, str, str, bytes, bool]] = deque()
        self._forget()

    @property
    def is_open(self) -> bool:
        return self._client is not None and self.session != 0 and not self._greeting

    def act(self) -> None:
        chance = self.world.chance
        if self._client is None:
            self.connect()
        elif chance.random() < 0.04:
            self.disconnect()
        elif self.is_open and len(self.outstanding) < 4:
            self._ask()

    def connect(self) -> None:
        if self._client is not None:
            return
        self.server = self.world.chance.choice(list(self.world.services))
        self._port = Port()
        self._client = Client(self._port, "10.0.0.1", self.world.now)
        self._greeting = True
        service = self.world.services[self.server]
        service.opened(self._client)
        connect = Connect(0, self.last_zxid, 20 * TICK_MS, self.session, self.password, False)
        service.on_frame(self._client, encode_connect(connect)[4:])

    def disconnect(self) -> None:
        if self._client is not None:
            self.world.services[self.server].closed(self._client)
        self._client = None
        self.outstanding.clear()

    def absorb(self) -> None:
        """Read what has arrived, checking every promise on the way."""
        while self._client is not None and self._port.frames:
            frame = self._port.frames.popleft()
            if self._greeting:
                self._greeted(frame)
            else:
                self._read(frame)
        if self._client is not None and self._port.is_closed:
            self._client = None
            self.outstanding.clear()

    def _forget(self) -> None:
        self.session = 0
        self.password = bytes(16)
        self.last_zxid = 0
        self.watching: dict[str, int] = {}
        self._greeting = False

    def _greeted(self, frame: bytes) -> None:
        timeout, session, password = decode_connect_reply(frame[4:])
        self._greeting = False
        if timeout == 0:
            self.world.counts["expired"] += 1
            self.disconnect()
            self._forget()
            return
        self.session, self.password = session, password
        if self.watching:
            data = [path for path, seen in self.watching.items() if seen]
            exist = [path for path, seen in self.watching.items() if not seen]
            self._send(
                -8, Op.SET_WATCHES2, pack_set_watches(SetWatches(self.last_zxid, data, exist, [], [], []))
            )

    def _ask(self) -> None:
        chance = self.world.chance
        path = chance.choice(PATHS)
        self.world.next_value += 1
        value = b"v%d" % self.world.next_value
        self._xid += 1
        watch = chance.random() < 0.5
        flag = b"\1" if watch else b"\0"
        match chance.randrange(9):
            case 0 | 1:
                op, kind, body = Op.GET_DATA, "read", pack_string(path) + flag
            case 2:
                op, kind, body = Op.EXISTS, "exists", pack_string(path) + flag
            case 3:
                op, kind, body = Op.CREATE, "write", _creation(path, value, Mode.PERSISTENT)
            case 4:
                op, kind, body = Op.CREATE, "write", _creation(path, value, Mode.EPHEMERAL)
            case 5:
                op, kind, body = Op.CREATE, "write", _creation("/s", value, Mode.EPHEMERAL_SEQUENTIAL)
            case 6:
                op, kind, body = Op.DELETE, "delete", pack_string(path) + pack_int(-1)
            case 7:
                ops = [(Op.SET_DATA, _setting(path, value)), (Op.CHECK, pack_string("/k0") + pack_int(-1))]
                op, kind, body = Op.MULTI, "multi", pack_multi(ops)
            case _:
                op, kind, body = Op.SET_DATA, "write", _setting(path, value)
        self.outstanding.append((self._xid, kind, path, value, watch))
        self._send(self._xid, op, body)

    def _send(self, xid: int, op: int, body: bytes) -> None:
        assert self._client is not None
        self.world.services[self.server].on_frame(self._client, encode_request(xid, op, body)[4:])

    def _read(self, frame: bytes) -> None:
        xid, zxid, code = REPLY_HEADER.unpack_from(frame, 4)
        body = Reader(frame, 4 + REPLY_HEADER.size)
        if xid == -1:
            body.int32(), body.int32()
            self.watching.pop(body.string(), None)
            self.last_zxid = max(self.last_zxid, zxid)
            self.world.counts["events"] += 1
            return
        if zxid < self.last_zxid:
            raise Violation(f"back in time: client {self.number} at {self.last_zxid:#x} got {zxid:#x}")
        self.last_zxid = zxid
        if xid < 0:
            return
        if not self.outstanding or self.outstanding[0][0] != xid:
            raise Violation(f"out of order: client {self.number} got the reply {xid}")
        _, kind, path, value, watch = self.outstanding.popleft()
        self.world.counts["replies"] += 1
        if kind in ("read", "exists"):
            self._check_read(kind, path, watch, code, body)
        elif kind == "write" and code == Code.OK:
            self.acknowledged.append(value)

    def _check_read(self, kind: str, path: str, watch: bool, code: int, body: Reader) -> None:
        if code not in (Code.OK, Code.NO_NODE):
            return
        if kind == "read" and code == Code.OK:
            body.buffer()
        shown = read_stat(body).mzxid if code == Code.OK else 0
        if self.watching.get(path, shown) != shown:
            raise Violation(f"read before event: client {self.number} reads {path} and was not told")
        if watch and (shown or kind == "exists"):
            self.watching[path] = shown


def _creation(path: str, value: bytes, mode: Mode) -> bytes:
    return pack_create(Create(path, value, OPEN_ACL, mode))


def _setting(path: str, value: bytes) -> bytes:
    return pack_string(path) + pack_buffer(value) + pack_int(-1)
