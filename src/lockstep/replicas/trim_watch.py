"""`python -m lockstep.replicas.trim_watch`: trims a run's order and stage topics, beside the run, not in its way.

Every `trim_seconds` it looks at the checkpoints of all sites, and deletes what was behind all of them at the last
look and still is: so whoever else reads along (digests, leaders that stand by) has at least that long. It deletes
nothing while a site has no checkpoint, starts, or catches up. In order:

1. Look: for each site and stage the batch before the newest committed one (should a disk lose the newest).
2. Sites that the run no longer has would find their place deleted when they come back: their checkpoints are
   removed, and they will join with a copy of another one's (`join.py`).
3. Under KaZoo, remember the position in the coordination service for leaders that start later
   (`order/trimming.py`). Under LiveRobin, note which partitions were added before it, for generators that start
   later (`order/growth.py`).
4. Delete. Whatever fails is tried again the next time; it may die at any moment.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from lockstep.coordination.client import Client
from lockstep.errors import LockstepError
from lockstep.log.interface import Log
from lockstep.log.kafka import KafkaLog
from lockstep.log.options import read_options
from lockstep.observe import logger as logs
from lockstep.order.growth import Trimmed, read_trimmed
from lockstep.order.trimming import remember
from lockstep.replicas import orders
from lockstep.replicas.layout import RunFolder, order_topic, write_json
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.settings import RunSettings
from lockstep.replicas.supervisor import TRIMMER
from lockstep.replicas.trim_plan import Plan, Readers, SiteCheckpoints, plan
from lockstep.spark.position import committed

logger = logs.get_logger(__name__)

_BACK = 1
_REPORT_SECONDS = 1.0
_COORDINATION_SECONDS = 10.0


class TrimWatch:
    """`look` and `trim` in turn."""

    def __init__(self, run: RunFolder, log: Log, readers: Readers, coordination: str | None) -> None:
        self._run = run
        self._log = log
        self._readers = readers
        self._coordination = coordination
        self._before = Plan()
        self.trimmed: dict[str, int] = {}
        """`topic:partition` to the offset that it begins at now."""
        self.waits = ""

    async def step(self, settings: RunSettings) -> None:
        """Look where all sites are, and delete what is behind them and was so the last time."""
        now = self._look(settings)
        due, self._before = self._before.still(now), now
        if due.orders or due.topics:
            self._forget_strangers(settings)
            await self._delete(order_topic(settings.name), due)

    def _look(self, settings: RunSettings) -> Plan:
        sites = [self._checkpoints(site) for site in settings.site_names]
        late = [one.site for one in sites if one.catching_up or None in one.stages.values()]
        self.waits = f"waits for {', '.join(late)}" if late else ""
        return plan(self._readers, sites)

    def _checkpoints(self, site: str) -> SiteCheckpoints:
        folder = self._run.site(site)
        stages = {}
        for stage in {reader.stage for reader in self._readers.readers}:
            found = committed(folder.checkpoint_of(stage), back=_BACK)
            stages[stage] = None if found is None else found[1]
        return SiteCheckpoints(site, stages, catching_up=folder.status().get("state") != "running")

    def _forget_strangers(self, settings: RunSettings) -> None:
        for site, folder in self._run.all_sites().items():
            if site not in settings.site_names:
                for checkpoint in folder.path.glob("checkpoint*"):
                    logger.info("%s is not needed any more: %s is no site of this run now", checkpoint, site)
                    shutil.rmtree(checkpoint, ignore_errors=True)

    async def _delete(self, topic: str, due: Plan) -> None:
        async with self._client() as client:
            for partition, position in due.orders.items():
                if client is not None:
                    await remember(client, topic, partition, position)
                if position.added:
                    self._note(partition, Trimmed(position.order_offset, position.added))
                await self._trim(topic, partition, position.order_offset)
        for (stage_topic, partition), before in due.topics.items():
            await self._trim(stage_topic, partition, before)

    def _note(self, partition: int, trimmed: Trimmed) -> None:
        noted = read_trimmed(self._run.trimmed)
        before = noted.get(partition)
        if before is None or before.order_offset < trimmed.order_offset:
            write_json(self._run.trimmed, msgspec.to_builtins({**noted, partition: trimmed}, str_keys=True))

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client | None]:
        if self._coordination is None:
            yield None
            return
        async with asyncio.timeout(_COORDINATION_SECONDS), Client(self._coordination) as client:
            yield client

    async def _trim(self, topic: str, partition: int, before: int) -> None:
        place = f"{topic}:{partition}"
        if self.trimmed.get(place, 0) < before:
            if (await self._log.first_offsets(topic))[partition] < before:
                await self._log.trim(topic, partition, before)
            self.trimmed[place] = before


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lockstep.replicas.trim_watch")
    parser.add_argument("--run-folder", type=Path, required=True)
    given = parser.parse_args(arguments)
    logs.configure()
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(_work(RunFolder(given.run_folder)))
    except LockstepError as error:
        print(f"lockstep trimmer: {error}", file=sys.stderr)
        return 1
    return 0


async def _work(run: RunFolder) -> None:
    settings = RunSettings.read(run.settings)
    manifest = Manifest.read(run.manifest)
    if manifest is None:
        raise LockstepError(f"{run.path} has no manifest", hint="start the run with `lockstep run`")
    coordination = orders.coordination(run, settings, manifest)
    readers = Readers.read(run.readers)
    async with KafkaLog(settings.bootstrap_servers, options=read_options(str(run.kafka_options))) as log:
        watch = TrimWatch(run, log, readers, coordination)
        due = time.monotonic()
        trouble = ""
        while True:
            if time.monotonic() >= due:
                settings = RunSettings.read(run.settings)  # another number of sites after a restart
                due = time.monotonic() + settings.trim_seconds
                try:
                    await watch.step(settings)
                    trouble = ""
                except (LockstepError, TimeoutError, OSError) as error:
                    trouble = str(error) or type(error).__name__
                    logger.warning("cannot trim now: %s", trouble)
            _report(run, watch, trouble)
            await asyncio.sleep(min(_REPORT_SECONDS, max(0.01, due - time.monotonic())))


def _report(run: RunFolder, watch: TrimWatch, trouble: str) -> None:
    status: dict[str, Any] = {"state": "running", "pid": os.getpid(), "updated": time.time()}
    told = {"trimmed": watch.trimmed, "waits": watch.waits, "trouble": trouble}
    write_json(run.orders(TRIMMER).status_file, {**status, **told})


if __name__ == "__main__":
    sys.exit(main())
