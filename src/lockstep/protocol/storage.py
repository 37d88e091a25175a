"""A node's durable history: records that survive kill -9 and power cuts, and are never lost in silence.

The folder of a node holds `lock` (two processes never share a folder) and `history`:

    header   magic (8) | marker (8, random) | crc32 of both (4)
    batch    marker (8) | length (4) | crc32 of length and payload (4) | payload: (length (4) | record)*

In which order things reach the disk, and why:

1. All records that wait are written as one batch, then fsync, then they are confirmed, in order. A batch is
   whole or absent, so a power cut in the middle of a write leaves a bad batch at the end of the file only.
2. The next batch is written after that fsync. So a bad batch at the tail was never confirmed and is cut
   off; a bad batch *before* a good one was confirmed once and is now damaged: the node refuses to start
   rather than forget what it promised.
3. What was found at start is fsynced before the machine sees it: it may have been written by a process that
   died before its own fsync.
4. `replace` writes a new file, fsyncs it, renames it over the old one and fsyncs the folder: a crash leaves
   the old history or the new one. The header comes into being the same way and is therefore never torn.
5. After a failed write or fsync nothing more is written: what the disk holds is no longer known, and only
   a new start can find out.

The marker differs from file to file, so neither records that quote another history nor old disk blocks can
pass for a batch. A damaged *last* batch cannot be told from a torn one.
"""

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

MAX_RECORD: Final = 64 * 2**20
MAX_BATCH: Final = 16 * 2**20
"""A batch takes further records until it has this many bytes; one larger record still makes a batch."""

_MAGIC: Final = b"LOCKSTP1"
_MARKER_BYTES: Final = 8
_HEADER: Final = struct.Struct("<8s8sI")
_BATCH: Final = struct.Struct("<8sII")
_LENGTH: Final = struct.Struct("<I")


class StorageError(LockstepError):
    """The disk did not do what a durable history needs."""


class CorruptHistoryError(StorageError):
    """Records that were confirmed can no longer be read."""


class History:
    """The durable records of one node, in one folder, owned by one process. Every call blocks."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, recover what it holds (`recovered`) and make sure that this is on the disk."""
        self.folder = folder
        self.path = folder / "history"
        self._lock = -1
        self._file = -1
        self._failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _take(folder / "lock", folder)
            (folder / "history.new").unlink(missing_ok=True)
            if not self.path.exists():
                self._write_anew(())
                self.recovered: list[bytes] = []
            else:
                self.recovered = self._recover()
        except OSError as error:
            self.close()
            raise _explained(error, folder) from error
        except BaseException:
            self.close()
            raise

    def append(self, records: Sequence[bytes]) -> None:
        """Add `records` as one batch; on return they would survive a power cut."""
        with _Poison(self):
            _write_all(self._file, _batch(self._marker, records))
            os.fdatasync(self._file)

    def replace(self, records: Iterable[bytes]) -> None:
        """Replace the whole history by `records`, atomically."""
        with _Poison(self):
            self._write_anew(records)

    def close(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _write_anew(self, records: Iterable[bytes]) -> None:
        marker = os.urandom(_MARKER_BYTES)
        temporary = self.folder / "history.new"
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, _HEADER.pack(_MAGIC, marker, zlib.crc32(_MAGIC + marker)))
            for batch in batches(records, MAX_BATCH):
                _write_all(file, _batch(marker, batch))
            os.fsync(file)
            temporary.replace(self.path)
            _sync_folder(self.folder)
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._marker = file, marker

    def _recover(self) -> list[bytes]:
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        data = self.path.read_bytes()
        self._marker = _marker_of(data, self.path)
        records: list[bytes] = []
        at = _HEADER.size
        while (payload := _payload_at(data, at, self._marker)) is not None:
            records.extend(_records_in(payload, self.path))
            at += _BATCH.size + len(payload)
        if at < len(data):
            self._refuse_damage(data, at)
            logger.warning("%s: cut off a torn write of %d bytes at %d", self.path, len(data) - at, at)
            os.ftruncate(self._file, at)
        os.lseek(self._file, at, os.SEEK_SET)
        os.fsync(self._file)
        _sync_folder(self.folder)
        return records

    def _refuse_damage(self, data: bytes, bad: int) -> None:
        """A good batch behind the bad one shows that the bad one had been confirmed."""
        later = data.find(self._marker, bad + 1)
        while later >= 0:
            if _payload_at(data, later, self._marker) is not None:
                raise CorruptHistoryError(
                    f"{self.path} is damaged at byte {bad}: confirmed records there cannot be read",
                    hint="check the disk; restore the folder from a copy, or remove it so that the node "
                    "comes back empty and learns its state from its peers, if its protocol allows that",
                )
            later = data.find(self._marker, later + 1)


def batches(records: Iterable[bytes], size: int) -> Iterable[list[bytes]]:
    """Cut `records` into runs of about `size` bytes."""
    batch: list[bytes] = []
    room = size
    for record in records:
        batch.append(record)
        room -= len(record) + _LENGTH.size
        if room <= 0:
            yield batch
            batch, room = [], size
    if batch:
        yield batch


class _Poison:
    """Turns a failed write into a clear error, and refuses every later one (rule 5)."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __enter__(self) -> None:
        if self._history._failed or self._history._file < 0:
            raise StorageError(
                f"{self._history.path} takes no more records after a failed write",
                hint="restart the node: it recovers what the disk really holds",
            )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._history._failed = True
        if isinstance(error, OSError):
            raise _explained(error, self._history.folder) from error


def _batch(marker: bytes, records: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    pack = _LENGTH.pack
    for record in records:
        if len(record) > MAX_RECORD:
            raise StorageError(
                f"a durable record of {len(record)} bytes is larger than {MAX_RECORD}",
                hint="persist it in parts",
            )
        parts.append(pack(len(record)))
        parts.append(record)
    payload = b"".join(parts)
    return _BATCH.pack(marker, len(payload), _checksum(payload)) + payload


def _checksum(payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(_LENGTH.pack(len(payload))))


def _payload_at(data: bytes, at: int, marker: bytes) -> memoryview | None:
    """The payload of the batch at this byte, or None where no whole, good batch stands."""
    if at + _BATCH.size > len(data):
        return None
    found, length, checksum = _BATCH.unpack_from(data, at)
    start = at + _BATCH.size
    if found != marker or start + length > len(data):
        return None
    payload = memoryview(data)[start : start + length]
    return payload if _checksum(payload) == checksum else None


def _records_in(payload: memoryview, path: Path) -> Iterable[bytes]:
    at = 0
    while at < len(payload):
        if at + _LENGTH.size > len(payload):
            raise CorruptHistoryError(f"{path} holds a batch that Lockstep did not write")
        (length,) = _LENGTH.unpack_from(payload, at)
        at += _LENGTH.size
        if at + length > len(payload):
            raise CorruptHistoryError(f"{path} holds a batch that Lockstep did not write")
        yield bytes(payload[at : at + length])
        at += length


def _marker_of(data: bytes, path: Path) -> bytes:
    if len(data) >= _HEADER.size:
        magic, marker, checksum = _HEADER.unpack_from(data)
        if magic == _MAGIC and checksum == zlib.crc32(_MAGIC + marker):
            return bytes(marker)
    raise CorruptHistoryError(
        f"{path} does not begin like a durable history of Lockstep",
        hint="it was written by something else or is damaged: restore it, or name another folder",
    )


def _take(lock: Path, folder: Path) -> int:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StorageError(
            f"{folder} is in use by another node (process {owner})",
            hint="stop that process, or give each node a folder of its own",
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_HINTS: Final[dict[int | None, str]] = {
    errno.ENOSPC: "free some space, then restart the node: nothing that was confirmed is lost",
    errno.EDQUOT: "raise the disk quota, then restart the node: nothing that was confirmed is lost",
    errno.EFBIG: "raise the file size limit (ulimit -f), then restart the node",
    errno.EROFS: "the file system is read-only: mount it writable, or name another folder",
    errno.EACCES: "make the folder writable for this user, or name another one",
    errno.EPERM: "make the folder writable for this user, or name another one",
    errno.EIO: "check the disk (dmesg), then restart the node from a good one",
}


def _explained(error: OSError, folder: Path) -> StorageError:
    return StorageError(
        f"cannot keep durable records in {folder}: {error.strerror or error}",
        hint=_HINTS.get(error.errno, "check the folder and its disk, then restart the node"),
    )
