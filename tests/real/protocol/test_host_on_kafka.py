"""The host's log effects on a real Kafka: appends in order, answered; subscriptions without a gap."""

import asyncio
import secrets
from typing import Any

import pytest
import uvloop

from lockstep.log.kafka import KafkaLog
from lockstep.protocol.host import Host
from lockstep.protocol.machine import Append, Effects, LogRecord, Machine, Subscribe, Token

pytestmark = pytest.mark.real

COUNT = 2_000


class Writer(Machine):
    """Appends COUNT numbers to its topic and reads everything back."""

    def __init__(self, topic: str, done: "asyncio.Future[None]") -> None:
        self._topic = topic
        self._done = done
        self.appended: dict[Token, int] = {}
        self.records: list[LogRecord] = []

    def on_start(self, durable: Any) -> Effects:
        yield Subscribe(self._topic, 0, 0)
        for number in range(COUNT):
            yield Append(self._topic, 0, b"%d" % number, key=b"k", headers=(("h", b"v"),), token=number)

    def on_appended(self, token: Token, offset: int) -> Effects:
        self.appended[token] = offset
        return self._look()

    def on_record(self, record: LogRecord) -> Effects:
        self.records.append(record)
        return self._look()

    def _look(self) -> Effects:
        if len(self.appended) == len(self.records) == COUNT and not self._done.done():
            self._done.set_result(None)
        return ()


def test_appends_keep_their_order_and_come_back_without_a_gap(bootstrap_servers: str) -> None:
    async def test() -> None:
        topic = f"host-{secrets.token_hex(4)}"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with KafkaLog(bootstrap_servers) as log:
            await log.create_topic(topic)
            machine = Writer(topic, done)
            host = Host(machine, node="a", log=log)
            await host.start()
            try:
                async with asyncio.timeout(60):
                    await done
            finally:
                await host.stop()
        assert [record.value for record in machine.records] == [b"%d" % number for number in range(COUNT)]
        assert [record.offset for record in machine.records] == list(range(COUNT))
        assert machine.appended == {number: number for number in range(COUNT)}
        assert (machine.records[0].key, machine.records[0].headers) == (b"k", (("h", b"v"),))

    uvloop.run(test())
