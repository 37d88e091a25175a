"""`python -m lockstep.replicas.digest_watch`: compares what the sites wrote, beside the run, never in its way.

It follows the output topic, keeps the digests of `digest.py`, and reports in its status file how far each
site's outputs are and whether two of them differ. It runs at the lowest priority and may die at any time.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from lockstep.errors import LockstepError
from lockstep.log.options import read_options
from lockstep.observe import logger as logs
from lockstep.replicas.deduplicate import well_formed
from lockstep.replicas.digest import Comparator, Divergence, Sighting, Suspicion, locate
from lockstep.replicas.join import begins
from lockstep.replicas.layout import RunFolder, write_json
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.settings import RunSettings
from lockstep.spark.identity import IDENTITY_HEADER, SITE_HEADER

logger = logs.get_logger(__name__)

_BATCH = 2000
_REPORT_SECONDS = 0.25
_SETTLE_SECONDS = 2.0
_MOST_FROM_START = 2_000_000
"""A longer topic is joined at its end: comparing the past anew is not worth the load."""
_LOCATE_SECONDS = 20.0
_UNHURRIED = {"fetch.min.bytes": 1 << 18, "fetch.wait.max.ms": 250}
"""Nobody waits for a comparison: it asks the broker for much at a time, and seldom."""


class DigestWatch:
    def __init__(
        self, settings: dict[str, Any], topic: str, partitions: int, joins: "Joins | None" = None
    ) -> None:
        self._joins = joins
        self._settings = {
            **settings,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "group.id": f"{topic}.digest",
            "queued.max.messages.kbytes": 16384,
            **_UNHURRIED,
        }
        self._topic = topic
        self._consumer: Any = Consumer(self._settings, logger=logger)
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        marks = [self._consumer.get_watermark_offsets(place, timeout=15) for place in places]
        from_start = all(low == 0 for low, _ in marks) and sum(high for _, high in marks) < _MOST_FROM_START
        for place in places:
            place.offset = OFFSET_BEGINNING if from_start else OFFSET_END
        self._consumer.assign(places)
        self.comparator = Comparator(from_start=from_start)
        self.divergence: Divergence | None = None
        self._quiet_since = time.monotonic()

    def step(self, timeout: float) -> None:
        """Take what is there. Once a divergence was found there is nothing more to find out."""
        first = self._consumer.poll(timeout)
        messages = [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]
        found: list[Suspicion] = []
        if messages and self._joins is not None:  # noted before the first record that a joined site writes
            for site, begins in self._joins.news():
                self.comparator.joined(site, begins)
        for message in messages:
            if message.error() is not None and message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(message.error())  # trimmed unread: a new watch begins at the end
            record = sighting(message)
            if record is not None:
                found += self.comparator.add(record)
        if messages:
            self._quiet_since = time.monotonic()
        elif time.monotonic() - self._quiet_since > _SETTLE_SECONDS:
            found += self.comparator.settle()
            self._quiet_since = time.monotonic()
        if found and self.divergence is None:
            self.divergence = self._locate(found)

    def status(self) -> dict[str, Any]:
        return {
            "state": "running",
            "compared": self.comparator.compared,
            "dropped": self.comparator.dropped,
            "latest": self.comparator.latest,
            "divergence": str(self.divergence) if self.divergence else None,
            "divergence_sn": self.divergence.identity.a if self.divergence else None,
        }

    def _locate(self, found: list[Suspicion]) -> Divergence | None:
        located = [
            divergence
            for suspicion in found[:16]
            if (divergence := locate(suspicion, self._reread(suspicion))) is not None
        ]
        return min(
            located, key=lambda divergence: (divergence.identity.a, divergence.identity.b), default=None
        )

    def _reread(self, suspicion: Suspicion) -> Iterator[Sighting]:
        reader: Any = Consumer(self._settings, logger=logger)
        try:
            reader.assign([TopicPartition(self._topic, suspicion.sequence[0], suspicion.first_offset)])
            deadline = time.monotonic() + _LOCATE_SECONDS
            while time.monotonic() < deadline:
                message = reader.poll(0.5)
                record = sighting(message) if message is not None else None
                if record is not None:
                    yield record
                read = message is not None and message.error() is None
                if read and message.offset() >= suspicion.last_offset:
                    return
        finally:
            reader.close()


class Joins:
    """Where sites began that took the checkpoint of another one."""

    def __init__(self, run: RunFolder, sites: Sequence[str], stage: str) -> None:
        self._folders = {site: run.site(site) for site in sites}
        self._stage = stage
        self._seen: dict[str, int] = {}

    def news(self) -> Iterator[tuple[str, dict[int, int]]]:
        for site, folder in self._folders.items():
            try:
                written = folder.copied.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if self._seen.get(site) != written:
                self._seen[site] = written
                yield site, begins(folder, self._stage)


def sighting(message: Any) -> Sighting | None:
    if message.error() is not None:
        return None
    headers = dict(message.headers() or ())
    identity = headers.get(IDENTITY_HEADER)
    if not well_formed(identity):
        return None
    site = (headers.get(SITE_HEADER) or b"").decode("utf-8", "replace")
    return Sighting(site, message.partition(), message.offset(), identity, message.key(), message.value())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lockstep.replicas.digest_watch")
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--stage", default="", help="a stage before the last, by its name")
    given = parser.parse_args(arguments)
    logs.configure()
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = RunFolder(given.run_folder)
    settings = RunSettings.read(run.settings)
    manifest = Manifest.read(run.manifest)
    if manifest is None:
        raise LockstepError(f"{run.path} has no manifest")
    if given.stage:
        manifest = next(stage for stage in manifest.stages if stage.pipeline == given.stage)
    connection = {
        **read_options(str(run.kafka_options)),
        "bootstrap.servers": settings.bootstrap_servers,
    }
    try:
        joins = Joins(run, settings.site_names, given.stage)
        watch = DigestWatch(connection, manifest.output.topic, manifest.output.partitions, joins)
        reported = 0.0
        while True:
            watch.step(0.1)
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                status = {"pid": os.getpid(), "updated": time.time(), **watch.status()}
                write_json(run.digest(given.stage).status_file, status)
    except KafkaException as error:
        print(f"lockstep digests: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
