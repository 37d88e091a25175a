"""The log on Kafka keeps the same contract as its twin."""

import pytest
from contract import LogContract

from lockstep.log.interface import Log
from lockstep.log.kafka import KafkaLog

pytestmark = pytest.mark.real


class TestKafkaLog(LogContract):
    @pytest.fixture(autouse=True)
    def _servers(self, bootstrap_servers: str) -> None:
        self.servers = bootstrap_servers

    def open_log(self) -> Log:
        return KafkaLog(self.servers)
