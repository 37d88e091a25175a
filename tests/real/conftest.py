"""What the tests against real systems share: one embedded broker for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.log.broker import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One node, shared: tests use topics of their own and never stop it."""
    folder: Path = tmp_path_factory.mktemp("broker")
    with Broker(folder) as shared:
        yield shared


@pytest.fixture(scope="session")
def bootstrap_servers(broker: Broker) -> str:
    return broker.bootstrap_servers
