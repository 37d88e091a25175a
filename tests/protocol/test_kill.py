"""kill -9 at any moment: every number that was confirmed is still there, and none is missing before it."""

import random
import sys
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from lockstep import process
from lockstep.protocol.storage import History
from protocol.machines import Number

NODE = Path(__file__).with_name("persisting_node.py")


def numbers(folder: Path) -> list[int]:
    history = History(folder)
    decode = msgspec.msgpack.Decoder(Number).decode
    found = [decode(record).number for record in history.recovered]
    history.close()
    return found


def last_confirmed(path: Path) -> int:
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return int(lines[-1]) if lines else -1


def lost(folder: Path, confirmed: Path) -> list[str]:
    """What the disk no longer has although it was confirmed, and holes."""
    found = numbers(folder)
    problems = [f"{after} follows {before}" for before, after in pairwise(found) if after != before + 1]
    last = found[-1] if found else -1
    if last < last_confirmed(confirmed):
        problems.append(f"{last_confirmed(confirmed)} was confirmed, the disk ends at {last}")
    return problems


@pytest.mark.parametrize("compact_every", [0, 97], ids=["append only", "with compaction"])
def test_kill_9_while_persisting_loses_nothing_that_was_confirmed(tmp_path: Path, compact_every: int) -> None:
    folder, confirmed = tmp_path / "node", tmp_path / "confirmed"
    moments = random.Random(compact_every)
    for round_ in range(6):
        before = last_confirmed(confirmed)
        command = [sys.executable, str(NODE), str(folder), str(confirmed), str(compact_every)]
        node = process.launch(command, log=tmp_path / "log")
        try:
            deadline = time.monotonic() + 20
            while last_confirmed(confirmed) < before + 200:
                assert node.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.03))  # so that the kill falls anywhere in a write
        finally:
            process.kill(node)
        assert lost(folder, confirmed) == [], f"round {round_}"


def test_the_check_above_catches_a_node_that_speaks_before_its_disk(tmp_path: Path) -> None:
    folder, confirmed = tmp_path / "node", tmp_path / "confirmed"
    command = [sys.executable, str(NODE), str(folder), str(confirmed), "0", "early"]
    node = process.launch(command, log=tmp_path / "log")
    assert node.wait(20) == -9, (tmp_path / "log").read_text()
    assert lost(folder, confirmed) == ["63 was confirmed, the disk ends at -1"]
