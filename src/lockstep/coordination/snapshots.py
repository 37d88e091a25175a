"""Snapshots of a tree as files: written beside the running server, checked when read.

A snapshot is written by a forked child that sees the tree as it was at the moment of the fork: exact, for one
zxid, and the server goes on with its next request after the few milliseconds that the fork takes.

    header   magic (8)
    chunk    length (4) | crc32 of the payload (4) | payload
    end      length 0 | crc32 of all chunks' crcs (4)

In which order: written to a temporary name, fsynced, renamed, the folder fsynced. Only then is its name given
to the protocol as the reference of a checkpoint, so a crash at any byte leaves the older one in use.
"""

import asyncio
import ctypes
import gc
import os
import re
import signal
import struct
import traceback
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from lockstep.coordination.tree import Tree
from lockstep.errors import LockstepError
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

_MAGIC: Final = b"LKSTREE1"
_CHUNK: Final = struct.Struct("<II")
_MAX_CHUNK: Final = 1 << 31
_NAME = re.compile(r"snapshot\.[0-9a-f]{16}")
_KEEP = 2
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class DamagedSnapshot(LockstepError):
    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"snapshot {path} is damaged: {what}",
            hint="remove this server's data folder: it gets everything from the others",
        )


class SnapshotStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing: dict[str, asyncio.Future[tuple[int, int]]] = {}
        """Snapshots that a child is writing: who wants the same one waits for it."""
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.new"):
            leftover.unlink()

    @classmethod
    def peek(cls, folder: Path) -> "SnapshotStore":
        """A store that is only read from: another process may be writing there."""
        store = cls.__new__(cls)
        store.folder = folder
        return store

    async def save(self, tree: Tree) -> tuple[int, bytes]:
        """Write the tree as it is now; (zxid, reference) once it is durable."""
        zxid = tree.last_zxid
        name = f"snapshot.{zxid:016x}"
        writing = self._writing.get(name)
        if writing is None and not (self.folder / name).exists():
            child = self._fork(tree, name)
            loop = asyncio.get_running_loop()
            writing = self._writing[name] = loop.run_in_executor(None, os.waitpid, child, 0)
            writing.add_done_callback(lambda _: self._writing.pop(name, None))
        if writing is not None:
            _, status = await writing
            if status != 0:
                raise LockstepError(
                    f"cannot write the snapshot {self.folder / name}",
                    hint="is the disk full or not writable?",
                )
        return zxid, name.encode()

    def load(self, reference: bytes) -> Tree:
        path = self._path(reference)
        try:
            with path.open("rb") as file:
                return Tree.restore(read_chunks(file, path))
        except FileNotFoundError as error:
            raise DamagedSnapshot(path, "the file is missing") from error
        except (ValueError, KeyError, StopIteration) as error:
            raise DamagedSnapshot(path, str(error)) from error

    def read(self, reference: bytes) -> bytes:
        return self._path(reference).read_bytes()

    def store(self, zxid: int, blob: bytes) -> bytes:
        """Keep a snapshot that another server sent; it is checked first."""
        name = f"snapshot.{zxid:016x}"
        self._publish(name, (blob,))
        with (self.folder / name).open("rb") as file:
            for _ in read_chunks(file, self.folder / name):
                pass
        return name.encode()

    def purge(self, reference: bytes) -> None:
        """Remove all but the named snapshot and the one before it."""
        names = sorted(path.name for path in self.folder.glob("snapshot.*") if _NAME.fullmatch(path.name))
        older = [name for name in names if name < reference.decode()]
        for name in older[: max(0, len(older) - (_KEEP - 1))]:
            (self.folder / name).unlink(missing_ok=True)

    def _path(self, reference: bytes) -> Path:
        name = reference.decode(errors="replace")
        if not _NAME.fullmatch(name):
            raise DamagedSnapshot(self.folder, f"{name!r} is no snapshot's name")
        return self.folder / name

    def _fork(self, tree: Tree, name: str) -> int:
        parent = os.getpid()
        child = os.fork()
        if child:
            return child
        status = 1
        try:  # in the child: only this thread exists, and nothing of the parent's may be touched
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # else a connection that the parent closes stays open
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                gc.disable()
                os.nice(10)
                self._publish(name, encode_chunks(tree.snapshot()))
                status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _publish(self, name: str, parts: Iterable[bytes]) -> None:
        temporary = self.folder / f"{name}.new"
        with temporary.open("wb", buffering=1 << 20) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def encode_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    total = 0
    yield _MAGIC
    for chunk in chunks:
        check = zlib.crc32(chunk)
        total = zlib.crc32(check.to_bytes(4, "little"), total)
        yield _CHUNK.pack(len(chunk), check)
        yield chunk
    yield _CHUNK.pack(0, total)


def read_chunks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    total = 0
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DamagedSnapshot(path, "it does not begin like a snapshot")
    while True:
        head = file.read(_CHUNK.size)
        if len(head) < _CHUNK.size:
            raise DamagedSnapshot(path, "it ends in the middle")
        length, check = _CHUNK.unpack(head)
        if length == 0:
            if check != total:
                raise DamagedSnapshot(path, "parts are missing")
            return
        chunk = file.read(length) if length < _MAX_CHUNK else b""
        if len(chunk) < length or zlib.crc32(chunk) != check:
            raise DamagedSnapshot(path, "a part does not match its checksum")
        total = zlib.crc32(check.to_bytes(4, "little"), total)
        yield chunk
