"""Topics of their own on the shared broker; `LOCKSTEP_TEST_BOOTSTRAP` names a broker that runs already."""

import os
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic


@pytest.fixture(scope="session")
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    given = os.environ.get("LOCKSTEP_TEST_BOOTSTRAP")
    return given or str(request.getfixturevalue("broker").bootstrap_servers)


@pytest.fixture(scope="session")
def new_topic(bootstrap_servers: str) -> Callable[..., str]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create(partitions: int = 3, prefix: str = "output") -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        admin.create_topics([NewTopic(name, partitions)])[name].result(20)
        return name

    return create
