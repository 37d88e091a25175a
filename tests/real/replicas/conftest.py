"""One broker for all of these tests; `LOCKSTEP_TEST_BOOTSTRAP` names one that runs already."""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lockstep.log.broker import Broker


@pytest.fixture(scope="session")
def bootstrap_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("LOCKSTEP_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def new_topic(bootstrap_servers: str) -> Callable[..., str]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create(partitions: int = 3, prefix: str = "output") -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        admin.create_topics([NewTopic(name, partitions)])[name].result(20)
        return name

    return create
