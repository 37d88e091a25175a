"""What was confirmed survives; what is torn is cut off; what is damaged is refused."""

import errno
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.protocol import storage
from lockstep.protocol.storage import CorruptHistoryError, History, StorageError

HEADER = 20
FIXTURES: Any = {"suppress_health_check": [HealthCheck.function_scoped_fixture]}

some_batches = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=5)


def written(folder: Path, batches: list[list[bytes]]) -> list[int]:
    """Write the batches; the file's size after the header and after each of them."""
    history = History(folder)
    sizes = [history.path.stat().st_size]
    for batch in batches:
        history.append(batch)
        sizes.append(history.path.stat().st_size)
    history.close()
    return sizes


def recovered(folder: Path) -> list[bytes]:
    history = History(folder)
    try:
        return history.recovered
    finally:
        history.close()


def flat(batches: list[list[bytes]]) -> list[bytes]:
    return [record for batch in batches for record in batch]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of small files whose bytes matter and whose durability does not."""
    monkeypatch.setattr(storage.os, "fsync", lambda _: None)
    monkeypatch.setattr(storage.os, "fdatasync", lambda _: None)


def fresh(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history").write_bytes(data)
    return folder


def test_records_come_back_in_order_after_a_restart(folder: Path) -> None:
    written(folder, [[b"a", b""], [b"b" * 100_000]])
    assert recovered(folder) == [b"a", b"", b"b" * 100_000]


def test_a_recovered_history_takes_further_records(folder: Path) -> None:
    written(folder, [[b"a"]])
    written(folder, [[b"b"]])
    assert recovered(folder) == [b"a", b"b"]


@pytest.mark.usefixtures("no_fsync")
@settings(max_examples=25, **FIXTURES)
@given(batches=some_batches)
def test_a_history_cut_at_any_byte_recovers_every_whole_batch_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]]
) -> None:
    base = tmp_path_factory.mktemp("torn")
    sizes = written(base / "whole", batches)
    data = (base / "whole" / "history").read_bytes()
    for cut in range(HEADER, len(data) + 1):
        node = fresh(base / "cut", data[:cut])
        whole = sum(size <= cut for size in sizes) - 1
        assert recovered(node) == flat(batches[:whole])
        written(node, [[b"next"]])
        assert recovered(node) == [*flat(batches[:whole]), b"next"]


@pytest.mark.usefixtures("no_fsync")
@settings(max_examples=60, **FIXTURES)
@given(batches=some_batches, junk=st.binary(min_size=1, max_size=200))
def test_junk_behind_the_last_batch_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], junk: bytes
) -> None:
    node = tmp_path_factory.mktemp("junk")
    written(node, batches)
    with (node / "history").open("ab") as file:
        file.write(junk)
    assert recovered(node) == flat(batches)


def test_zeros_behind_the_last_batch_are_cut_off(folder: Path) -> None:
    """Some file systems extend a file before its data arrives."""
    sizes = written(folder, [[b"a"], [b"b"]])
    with (folder / "history").open("ab") as file:
        file.write(bytes(10_000))
    assert recovered(folder) == [b"a", b"b"]
    assert (folder / "history").stat().st_size == sizes[-1]


@pytest.mark.usefixtures("no_fsync")
@settings(max_examples=15, **FIXTURES)
@given(batches=some_batches.filter(lambda batches: len(batches) > 1), flip=st.integers(1, 255))
def test_a_damaged_byte_before_the_last_batch_is_refused_never_skipped(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], flip: int
) -> None:
    base = tmp_path_factory.mktemp("damaged")
    sizes = written(base / "whole", batches)
    data = (base / "whole" / "history").read_bytes()
    for at in range(HEADER, sizes[-2]):
        damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
        node = fresh(base / "node", damaged)
        with pytest.raises(CorruptHistoryError, match="damaged at byte") as refused:
            History(node)
        assert "restore" in refused.value.hint
        assert (node / "history").read_bytes() == damaged, "a refused history must stay as it was"


def test_a_lost_first_page_of_a_torn_batch_is_a_torn_tail_not_damage(folder: Path) -> None:
    """A power cut may keep the end of an unconfirmed write and lose its beginning."""
    sizes = written(folder, [[b"confirmed"], [bytes([n]) * 1000 for n in range(20)]])
    data = bytearray((folder / "history").read_bytes())
    data[sizes[1] : sizes[1] + 4096] = bytes(4096)
    fresh(folder, bytes(data))
    assert recovered(folder) == [b"confirmed"]


def test_a_record_that_quotes_another_history_is_not_taken_for_a_batch(tmp_path: Path) -> None:
    written(tmp_path / "quoted", [[b"old"]])
    quote = (tmp_path / "quoted" / "history").read_bytes()
    sizes = written(tmp_path / "node", [[b"a"], [quote * 3]])
    data = (tmp_path / "node" / "history").read_bytes()
    assert recovered(fresh(tmp_path / "cut", data[: sizes[-1] - 1])) == [b"a"]


@pytest.mark.parametrize("size", range(HEADER))
def test_a_history_without_a_whole_header_is_refused(folder: Path, size: int) -> None:
    """It comes into being by a rename, so no crash leaves it so."""
    written(folder, [[b"a"]])
    fresh(folder, (folder / "history").read_bytes()[:size])
    with pytest.raises(CorruptHistoryError, match="does not begin like"):
        History(folder)


def test_another_file_is_refused(folder: Path) -> None:
    with pytest.raises(CorruptHistoryError, match="does not begin like"):
        History(fresh(folder, b"#!/bin/sh\necho this is something else\n"))


def test_replace_leaves_only_the_new_records(folder: Path) -> None:
    history = History(folder)
    history.append([b"a", b"b"])
    history.replace([b"ab"])
    history.append([b"c"])
    history.close()
    assert recovered(folder) == [b"ab", b"c"]


def test_replace_may_be_larger_than_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [bytes([n]) * 1000 for n in range(50)]
    monkeypatch.setattr(storage, "MAX_BATCH", 3000)
    history = History(folder)
    history.replace(records)
    history.close()
    data = (folder / "history").read_bytes()
    assert data.count(data[8:16]) > 10, "one marker a batch, and one in the header"
    assert recovered(folder) == records


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_during_replace_leaves_the_old_history(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    written(folder, [[b"a"], [b"b"]])
    history = History(folder)

    def crash(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", crash) if step == "fsync" else patch.setattr(
            Path, "replace", crash
        )
        with pytest.raises(StorageError):
            history.replace([b"ab"])
    history.close()
    assert recovered(folder) == [b"a", b"b"]


def test_after_a_failed_fsync_nothing_more_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(folder)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fdatasync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            history.append([b"a"])
    with pytest.raises(StorageError, match="takes no more records"):
        history.append([b"b"])
    history.close()


class PowerCut:
    """Knows how much of the file an fsync has covered; a power cut leaves just that."""

    def __init__(self, path: Path, *, honest: bool = True) -> None:
        self._path = path
        self._honest = honest
        self.durable = path.stat().st_size

    def fdatasync(self, descriptor: int) -> None:
        if self._honest:
            self.durable = os.fstat(descriptor).st_size

    def strike(self) -> None:
        os.truncate(self._path, self.durable)


@pytest.mark.parametrize("honest", [True, False], ids=["fsync", "planted bug: no fsync"])
def test_a_returned_append_survives_a_power_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    history = History(folder)
    power = PowerCut(history.path, honest=honest)
    monkeypatch.setattr(storage.os, "fdatasync", power.fdatasync)
    history.append([b"a"])
    history.append([b"b"])
    history.close()
    power.strike()
    survived = recovered(folder)
    assert (survived == [b"a", b"b"]) is honest


def test_two_processes_cannot_share_a_folder(folder: Path) -> None:
    history = History(folder)
    script = (
        "import sys, pathlib\n"
        "from lockstep.protocol.storage import History, StorageError\n"
        "try: History(pathlib.Path(sys.argv[1]))\n"
        "except StorageError as error: print(error); sys.exit(7)\n"
    )
    taken = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True)
    assert taken.returncode == 7, taken.stderr
    assert f"in use by another node (process {os.getpid()})" in taken.stdout
    history.close()
    free = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True)
    assert free.returncode == 0


def test_a_full_disk_is_told_and_what_was_confirmed_stays(folder: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse the write half-way, as a full disk does."""
    script = (
        "import sys, pathlib, resource\n"
        "from lockstep.protocol.storage import History, StorageError\n"
        "history = History(pathlib.Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "done = 0\n"
        "try:\n"
        "    while True: history.append([b'x' * 700]); done += 1\n"
        "except StorageError as error: print(done, error)\n"
    )
    told = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True)
    done, _, message = told.stdout.partition(" ")
    assert "cannot keep durable records" in message and "restart the node" in message, told.stderr
    assert (folder / "history").stat().st_size == 5000, "the last write was torn"
    assert recovered(folder) == [b"x" * 700] * int(done)


def test_the_error_of_a_full_disk_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(folder)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "write", full)
        with pytest.raises(StorageError, match="No space left on device") as told:
            history.append([b"a"])
    assert "free some space" in told.value.hint
    history.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot keep durable records in"):
        History(tmp_path / "file" / "node")


def test_a_record_that_is_too_large_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_RECORD", 1000)
    history = History(folder)
    with pytest.raises(StorageError, match="larger than 1000"):
        history.append([b"x" * 1001])
    history.close()
    assert recovered(folder) == []


def test_an_enormous_length_does_not_make_recovery_allocate(folder: Path) -> None:
    written(folder, [[b"a"]])
    marker = (folder / "history").read_bytes()[8:16]
    with (folder / "history").open("ab") as file:
        file.write(marker + struct.pack("<II", 2**32 - 1, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert recovered(folder) == [b"a"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
