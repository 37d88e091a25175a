"""A broadcast protocol of one, without a disk, for tests of the service: what is proposed is committed when the
test says so. It can lose its leadership, and with it all that was proposed and not committed."""

from lockstep.coordination.clients import Client, Settings
from lockstep.coordination.service import Service
from lockstep.coordination.tree import OPEN_ACL
from lockstep.coordination.wire.codes import Mode, Op
from lockstep.coordination.wire.jute import Reader, pack_buffer, pack_int, pack_string
from lockstep.coordination.wire.records import (
    REPLY_HEADER,
    Connect,
    Create,
    decode_connect_reply,
    encode_connect,
    encode_request,
    pack_create,
)
from lockstep.coordination.zab.interface import Command, Committed, Leading, Looking, Propose, zxid_of


class Port:
    """A client's connection that remembers what was written to it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_closed = False
        self.is_paused = False

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        self.is_closed = True

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


class Solo:
    def __init__(self, *, tick_ms: int = 100, **settings: object) -> None:
        self.now = 1_000_000
        self.clock_error = 0
        self.epoch = 0
        self.counter = 0
        self.proposed: list[bytes] = []
        self.service = Service(
            Settings(1, tick_ms=tick_ms, **settings),  # type: ignore[arg-type]
            command=self._command,
            wake=lambda: None,
            now_ms=lambda: self.now + self.clock_error,
            steady_ms=lambda: self.now,
        )
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        self.counter = 0
        self.service.on_delivery(Leading(self.epoch))

    def lose_leadership(self) -> None:
        self.proposed.clear()
        self.service.on_delivery(Looking("the test says so"))

    def propose(self) -> None:
        self.service.flush()
        self.service.flush()

    def commit(self) -> None:
        """Everything that was asked for so far becomes part of the history."""
        self.propose()
        while self.proposed:
            txns, self.proposed = tuple(self.proposed), []
            self.service.on_delivery(Committed(zxid_of(self.epoch, self.counter + 1), txns))
            self.counter += len(txns)
            self.propose()

    def pass_time(self, milliseconds: int, step: int = 10) -> None:
        for _ in range(milliseconds // step):
            self.now += step
            self.service.on_tick()
            self.commit()

    def _command(self, command: Command) -> None:
        assert isinstance(command, Propose)
        assert command.epoch == self.epoch
        self.proposed += command.txns


class Caller:
    """Speaks the client protocol to a `Solo`, byte by byte."""

    def __init__(self, solo: Solo, *, connect: Connect | None = None, address: str = "10.0.0.1") -> None:
        self.solo = solo
        self.port = Port()
        self.client = Client(self.port, address, solo.now)
        self.xid = 0
        solo.service.opened(self.client)
        asked = connect or Connect(0, 0, 1000, 0, bytes(16), False)
        solo.service.on_frame(self.client, encode_connect(asked)[4:])
        solo.commit()
        self.timeout, self.session, self.password = (0, 0, b"")
        if self.port.frames:
            self.timeout, self.session, self.password = decode_connect_reply(self.port.frames.pop(0)[4:])

    def send(self, op: Op, body: bytes = b"", *, xid: int | None = None) -> int:
        self.xid += 1
        number = self.xid if xid is None else xid
        self.solo.service.on_frame(self.client, encode_request(number, op, body)[4:])
        return number

    def ask(self, op: Op, body: bytes = b"") -> tuple[int, Reader]:
        """Send, commit, and take the reply with this request's number: (code, body)."""
        xid = self.send(op, body)
        self.solo.commit()
        for index, frame in enumerate(self.port.frames):
            found, _, code = REPLY_HEADER.unpack_from(frame, 4)
            if found == xid:
                del self.port.frames[index]
                return code, Reader(frame, 4 + REPLY_HEADER.size)
        raise AssertionError("no reply")

    def create(self, path: str, data: bytes = b"", mode: int = Mode.PERSISTENT) -> tuple[int, Reader]:
        return self.ask(Op.CREATE, creation(path, data, mode))

    def set(self, path: str, data: bytes, version: int = -1) -> tuple[int, Reader]:
        return self.ask(Op.SET_DATA, setting(path, data, version))

    def get(self, path: str, *, watch: bool = False) -> tuple[int, Reader]:
        return self.ask(Op.GET_DATA, pack_string(path) + (b"\1" if watch else b"\0"))

    def taken(self) -> list[tuple[int, int]]:
        """(xid, code or event) of every frame that waits, in order; events have the xid -1."""
        found = []
        for frame in self.port.frames:
            xid, _, code = REPLY_HEADER.unpack_from(frame, 4)
            if xid == -1:
                code = Reader(frame, 4 + REPLY_HEADER.size).int32()
            found.append((xid, code))
        self.port.frames.clear()
        return found


def creation(path: str, data: bytes = b"", mode: int = Mode.PERSISTENT) -> bytes:
    return pack_create(Create(path, data, OPEN_ACL, mode))


def setting(path: str, data: bytes, version: int = -1) -> bytes:
    return pack_string(path) + pack_buffer(data) + pack_int(version)


def deletion(path: str, version: int = -1) -> bytes:
    return pack_string(path) + pack_int(version)
