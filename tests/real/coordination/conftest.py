"""A real ensemble of three server processes, and clients that we did not write."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from lockstep.coordination.ensemble import Ensemble


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    with Ensemble(tmp_path / "ensemble", tick_ms=500) as running:
        yield running


@pytest.fixture
def kazoo_client(ensemble: Ensemble) -> Iterator[Callable[..., KazooClient]]:
    clients: list[KazooClient] = []

    def connect(**options: object) -> KazooClient:
        client = KazooClient(ensemble.connect_string, **{"timeout": 5.0, **options})
        clients.append(client)
        client.start(timeout=15)
        return client

    yield connect
    for client in clients:
        client.stop()
        client.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., None]:
    return wait_until
