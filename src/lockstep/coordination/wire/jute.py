"""The jute encoding: big-endian numbers, and byte strings behind a 32-bit length (-1 is null).

Every length is chosen by a peer, so each is compared with what is really there before anything is
allocated. Any byte sequence either decodes or raises `BadFrame`; nothing else can happen.
"""

from collections.abc import Callable
from struct import Struct
from typing import TypeVar

T = TypeVar("T")

_INT = Struct("!i")
_LONG = Struct("!q")
_NULL = b"\xff\xff\xff\xff"


class BadFrame(Exception):
    """The bytes are not what the protocol says should stand here."""


class Reader:
    """Reads one frame from its beginning to its end."""

    __slots__ = ("_at", "_bytes", "_end")

    def __init__(self, frame: bytes, at: int = 0) -> None:
        self._bytes = frame
        self._at = at
        self._end = len(frame)

    @property
    def remaining(self) -> int:
        return self._end - self._at

    def int32(self) -> int:
        at = self._at
        if at + 4 > self._end:
            raise BadFrame("a number is cut off")
        self._at = at + 4
        value: int = _INT.unpack_from(self._bytes, at)[0]
        return value

    def int64(self) -> int:
        at = self._at
        if at + 8 > self._end:
            raise BadFrame("a number is cut off")
        self._at = at + 8
        value: int = _LONG.unpack_from(self._bytes, at)[0]
        return value

    def flag(self) -> bool:
        at = self._at
        if at >= self._end:
            raise BadFrame("a truth value is cut off")
        self._at = at + 1
        return self._bytes[at] != 0

    def buffer(self) -> bytes | None:
        length = self.int32()
        if length == -1:
            return None
        at = self._at
        if length < 0 or at + length > self._end:
            raise BadFrame("a length points outside the frame")
        self._at = at + length
        return self._bytes[at : at + length]

    def string(self) -> str:
        """Null reads as the empty string: kazoo sends one for the other."""
        raw = self.buffer()
        try:
            return raw.decode() if raw else ""
        except UnicodeDecodeError as error:
            raise BadFrame("a string is not UTF-8") from error

    def vector(self, item: Callable[["Reader"], T], smallest: int) -> list[T]:
        """A list whose items take at least `smallest` bytes each; null reads as empty."""
        count = self.int32()
        if count == -1:
            return []
        if count < 0 or count * smallest > self.remaining:
            raise BadFrame("a list is longer than its frame")
        return [item(self) for _ in range(count)]

    def strings(self) -> list[str]:
        return self.vector(Reader.string, 4)


def pack_buffer(value: bytes | None) -> bytes:
    return _NULL if value is None else _INT.pack(len(value)) + value


def pack_string(value: str) -> bytes:
    raw = value.encode()
    return _INT.pack(len(raw)) + raw


def pack_int(value: int) -> bytes:
    return _INT.pack(value)


def pack_long(value: int) -> bytes:
    return _LONG.pack(value)


def pack_strings(values: "list[str] | tuple[str, ...]") -> bytes:
    parts = [_INT.pack(len(values))]
    for value in values:
        raw = value.encode()
        parts.append(_INT.pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def framed(*parts: bytes) -> bytes:
    """The parts as one frame, behind its length."""
    return b"".join((_INT.pack(sum(map(len, parts))), *parts))
