"""A KaZoo leader process: orders the inputs of a run's shards while it is elected, and stands by while it is not.

    python -m lockstep.order.lead --bootstrap-servers HOST:PORT --order-topic T --name leader-1 \
        --coordination HOST:PORT,HOST:PORT,HOST:PORT --shard in-a:0@17,in-b:0@4 --shard in-a:1@23,in-b:1@0

Start two or more, each with a name of its own. One election decides for all shards of the order topic: who leads,
leads them all. The process holds nothing that matters: kill it at any time, and another one leads within tens of
milliseconds (`candidacy.py`, `kazoo.py`).

It says on standard output, one JSON object a line, what happens (`report.py`).
"""

import argparse
import asyncio
import gc
import signal
from collections.abc import Sequence
from typing import Any

import msgspec

from lockstep.coordination.client import Client
from lockstep.errors import LockstepError, UsageError
from lockstep.log.interface import Log
from lockstep.observe.logger import get_logger
from lockstep.order import command
from lockstep.order.candidacy import Candidacy
from lockstep.order.growth import Growth
from lockstep.order.inputs import EndOffsets, Shard, ShardHost
from lockstep.order.kazoo import (
    Depose,
    Deposed,
    Elected,
    Leads,
    Orderer,
    Outranked,
    Policy,
    by_priority,
    in_slices,
    in_turn,
)
from lockstep.order.merge import Position
from lockstep.order.pace import IDLE
from lockstep.order.report import report_void, say
from lockstep.order.trimming import path_of, recall

logger = get_logger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a leader orders; times in seconds. All leaders of an order topic should have the same."""

    period: float = 0.002
    idle: float = IDLE
    cap: int = 1000
    recent: int = 1
    patience: float = 0.2
    session: float = 2.0
    policy: Policy = in_turn


DEFAULTS = Settings()


class Leader:
    """The orderers of all shards of an order topic in this process, and its candidacy for all of them."""

    def __init__(
        self,
        log: Log,
        order_topic: str,
        shards: Sequence[Shard],
        *,
        coordination: str,
        name: str,
        settings: Settings = DEFAULTS,
    ) -> None:
        self._log = log
        self._topic = order_topic
        self._shards = list(shards)
        self._coordination = coordination
        self._name = name
        self._settings = settings
        self._candidacy = Candidacy(
            coordination,
            f"{path_of(order_topic)}/candidates",
            name,
            elected=self._elected,
            deposed=self._deposed,
            session=settings.session,
        )
        self._orderers: list[Orderer] = []
        self._hosts: list[ShardHost] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        self._epoch = 0

    async def run(self) -> None:
        """Lead and stand by until cancelled; raises if one of the orderers ends itself."""
        positions = await trimmed_to(self._coordination, self._topic, len(self._shards))
        self._failed = asyncio.get_running_loop().create_future()
        ends = EndOffsets(self._log, self._shards, fresh=self._settings.period / 2)
        for number, shard in enumerate(self._shards):
            self._add(number, shard, ends, positions[number])
        standing: asyncio.Task[None] | None = None
        try:
            for one in self._hosts:
                await one.host.start()
            await self._log.ready(self._topic)
            gc.freeze()
            standing = asyncio.ensure_future(self._candidacy.run())
            void = report_void(self._name, lambda: sum(orderer.void for orderer in self._orderers))
            self._keep(asyncio.ensure_future(void))
            self._keep(asyncio.ensure_future(ends.watch()))
            self._keep(
                asyncio.ensure_future(Growth(self._name, self._log, self._topic, self._shards).watch())
            )
            await asyncio.gather(standing, self._failed, *(one.host.ended() for one in self._hosts))
        finally:
            for task in [*self._tasks, *([standing] if standing is not None else [])]:
                task.cancel()
            if standing is not None:
                await asyncio.gather(standing, return_exceptions=True)
            for one in self._hosts:
                await one.stop()

    def _add(self, number: int, shard: Shard, ends: EndOffsets, position: Position | None) -> None:
        settings = self._settings
        orderer = Orderer(
            self._name,
            self._topic,
            number,
            shard.starts,
            period=settings.period,
            idle=settings.idle,
            cap=settings.cap,
            recent=settings.recent,
            patience=max(1, round(settings.patience / settings.period)),
            policy=settings.policy,
            position=position,
        )

        def deliver(item: Any) -> None:
            self._delivered(number, item)

        self._orderers.append(orderer)
        self._hosts.append(
            ShardHost(
                orderer,
                node=f"{self._name}/{number}",
                log=self._log,
                shard=shard,
                ends=ends,
                deliver=deliver,
            )
        )

    def _elected(self, epoch: int) -> None:
        self._epoch = epoch
        say("elected", name=self._name, epoch=epoch)
        for one in self._hosts:
            one.tell(Elected(epoch))

    def _deposed(self) -> None:
        if self._epoch:
            self._epoch = 0
            say("deposed", name=self._name)
            for one in self._hosts:
                one.tell(Deposed())

    def _delivered(self, shard: int, item: Any) -> None:
        match item:
            case Leads(epoch=epoch, by=by, mine=mine):
                say("leading" if mine else "following", name=self._name, shard=shard, epoch=epoch, by=by)
            case Depose(epoch=epoch):
                self._keep(asyncio.ensure_future(self._candidacy.depose(epoch)))
            case Outranked():
                self._keep(asyncio.ensure_future(self._outranked(item)))

    async def _outranked(self, void: Outranked) -> None:
        """A leader that was replaced meanwhile may find its claim void. One that still stands may not."""
        if self._epoch != void.epoch or not await self._candidacy.stands():
            return
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_exception(
                LockstepError(
                    f"{self._topic} has seen epoch {void.seen}, the coordination service now gives {void.epoch}",
                    hint="it was set up anew: give it its old data back, or begin a run with another order topic",
                )
            )

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def trimmed_to(coordination: str, order_topic: str, shards: int) -> list[Position | None]:
    """The position before which each shard's order topic may have been trimmed: see `trimming.py`."""
    async with Client(coordination) as client:
        return [await recall(client, order_topic, shard) for shard in range(shards)]


def _policy(arguments: argparse.Namespace, queues: int) -> Policy:
    if arguments.priority and arguments.slice:
        raise UsageError("--priority and --slice exclude each other", hint="choose one of them")
    if arguments.slice:
        return in_slices(arguments.slice)
    if not arguments.priority:
        return in_turn
    parts = arguments.priority.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) < queues for part in parts):
        raise UsageError(
            f"--priority {arguments.priority} names no queue of every shard",
            hint=f"give numbers from 0 to {queues - 1}, the most urgent first",
        )
    return by_priority(*map(int, parts))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number above 0 is needed")
    return int(text)


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--order-topic", required=True)
    parser.add_argument("--coordination", required=True, help="host:port,host:port,host:port")
    parser.add_argument("--shard", action="append", required=True, help="topic:partition@start,...")
    parser.add_argument("--name", required=True, help="a name that no other leader has")
    parser.add_argument("--period-ms", type=float, default=2.0, help="between two looks at the inputs")
    parser.add_argument("--idle-ms", type=float, default=1000 * IDLE, help="the same while nothing comes in")
    parser.add_argument("--cap", type=_positive, default=1000, help="inputs of a queue in one order, at most")
    parser.add_argument("--recent-looks", type=int, default=1, help="how new an input must not be when busy")
    parser.add_argument(
        "--patience-ms", type=float, default=200.0, help="how long a leader may be silent while input waits"
    )
    parser.add_argument("--session-ms", type=float, default=2000.0, help="session timeout at the service")
    parser.add_argument("--priority", default="", help="queue numbers, the most urgent first")
    parser.add_argument("--slice", type=_positive, help="inputs of a queue before it is the next one's turn")
    arguments = parser.parse_args()
    command.run(arguments, lambda log: _lead(arguments, log))


async def _lead(arguments: argparse.Namespace, log: Log) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    shards = [Shard.parse(text) for text in arguments.shard]
    leader = Leader(
        log,
        arguments.order_topic,
        shards,
        coordination=arguments.coordination,
        name=arguments.name,
        settings=Settings(
            period=arguments.period_ms / 1000,
            idle=arguments.idle_ms / 1000,
            cap=arguments.cap,
            recent=max(0, arguments.recent_looks),
            patience=arguments.patience_ms / 1000,
            session=arguments.session_ms / 1000,
            policy=_policy(arguments, min(len(shard.queues) for shard in shards)),
        ),
    )
    try:
        await leader.run()
    except asyncio.CancelledError:
        logger.info("%s stops", arguments.name)


if __name__ == "__main__":
    main()
