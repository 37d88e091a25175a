"""The timing model's parameters, measured on this machine (paper, section 4 and table 3).

How long servers took to notice a kill comes from the kills themselves; the rest is measured here, in this one
process: one election message through the machine, one durable write, one small message to a peer and back.
"""

import os
import socket
import threading
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import msgspec

from lockstep.coordination import timing
from lockstep.coordination.zab.messages import MESSAGE, Notification, State, Vote
from lockstep.coordination.zab.server import Server
from lockstep.coordination.zab.settings import Settings
from lockstep.protocol.machine import Send
from lockstep.protocol.storage import History

SAMPLES = 50
_decoder = msgspec.msgpack.Decoder(MESSAGE)


def calibrated(folder: Path, notices: Sequence[float]) -> timing.Parameters:
    """`notices` are seconds from a kill until a survivor looked."""
    seen = cycle(sorted(notices))
    history = History(folder / "calibration")
    near, far = socket.socketpair()
    echo = threading.Thread(target=_echo, args=(far,), daemon=True)
    echo.start()
    try:
        return timing.calibrate(
            Settings(),
            handle=_handle,
            write=lambda: _timed_write(history),
            carry=lambda: _carried(near),
            notice=lambda: next(seen),
            samples=max(SAMPLES, len(notices)),
        )
    finally:
        near.close()
        echo.join()
        far.close()
        history.close()


def _handle() -> float:
    server = Server(1, (1, 2, 3), Settings())
    server.on_start(())
    frame = msgspec.msgpack.encode(Notification(1, Vote(0, 0, 2), State.LOOKING, 0))
    began = time.perf_counter()
    for effect in server.on_message("2", _decoder.decode(frame)):
        if isinstance(effect, Send):
            msgspec.msgpack.encode(effect.message)
    return time.perf_counter() - began


def _timed_write(history: History) -> float:
    began = time.perf_counter()
    history.append([os.urandom(64)])
    return time.perf_counter() - began


def _carried(near: socket.socket) -> float:
    began = time.perf_counter()
    near.sendall(bytes(100))
    near.recv(100, socket.MSG_WAITALL)
    return time.perf_counter() - began


def _echo(far: socket.socket) -> None:
    while part := far.recv(100, socket.MSG_WAITALL):
        far.sendall(part)
