"""When a snapshot is due: after a span of transactions or bytes, which grows with the tree."""

from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.coordination.checkpoints import Checkpoints
from lockstep.coordination.config import NodeConfig


def due_after(tmp_path: Path, *, server: int, nodes: int, size: int = 10, snapshots: int = 1) -> list[int]:
    """How many transactions were committed when each of the first snapshots came due."""
    members = dict.fromkeys((1, 2, 3), cast(Any, None))
    config = NodeConfig(server, members, tmp_path, snapshot_every=300, snapshot_bytes=1_000_000)
    saved: list[int] = []
    checkpoints = Checkpoints(
        config,
        cast(Any, None),
        cast(Any, SimpleNamespace(tree=SimpleNamespace(nodes=range(nodes)))),
        command=lambda _: None,
        spawn=lambda work: save(work),
        fail=pytest.fail,
    )

    def save(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        saved.append(count)
        checkpoints._is_saving = False

    count = 0
    while len(saved) < snapshots:
        count += 1
        checkpoints.on_committed((b"." * size,))
    return saved


def test_servers_take_turns(tmp_path: Path) -> None:
    due = [due_after(tmp_path, server=server, nodes=10, snapshots=2) for server in (1, 2, 3)]
    assert due == [
        [pytest.approx(first, abs=1), pytest.approx(first + 300, abs=2)] for first in (300, 400, 500)
    ]


def test_a_larger_tree_is_written_less_often_and_still_in_turn(tmp_path: Path) -> None:
    due = [due_after(tmp_path, server=server, nodes=3000)[0] for server in (1, 2, 3)]
    assert due == [pytest.approx(count, abs=1) for count in (3000, 4000, 5000)]


def test_large_transactions_bring_it_forward(tmp_path: Path) -> None:
    assert due_after(tmp_path, server=1, nodes=10, size=10_000) == [100]
