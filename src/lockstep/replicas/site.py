"""`python -m lockstep.replicas.site`: one site, a process with its own Spark application.

Crash-only: a site that doubts itself dies at once, and its supervisor starts it again from its checkpoint.
What it writes twice by that, nobody downstream notices. In order:

1. Report `starting`; load the pipeline; build the session; choose the engine (the first site to get there
   writes it down, the others take it) and let the determinism guard look at the plan.
2. Wait until a query that starts now has its batch boundaries apart from those of the other sites. A site
   without a checkpoint takes a copy of another one's (`join.py`).
3. Start the query, report batch, phase and positions every 250 ms, from here on alone: no supervisor is
   needed for outputs to flow. It is `catching up` until it is near the input's end, then `running`. If its
   boundaries fall together with another site's, stop the query, and go back to 2, in the same JVM.
4. When the query ends, the JVM is gone, or SIGTERM comes: die, with all that this process started.

Exit code 2 says that starting it again cannot help (the pipeline or a setting is wrong).
"""

import argparse
import dataclasses
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep import process
from lockstep.errors import LockstepError, UsageError
from lockstep.observe import logger as logs
from lockstep.replicas import phase
from lockstep.replicas.catch_up import CATCHING_UP, READING, RUNNING, CatchUp
from lockstep.replicas.crash import crash_point
from lockstep.replicas.layout import ProcessFolder, RunFolder, read_json, write_json
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.priority import step_aside, step_forward
from lockstep.replicas.settings import RunSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.replicas.stages import Stage
    from lockstep.spark.engine import EngineSettings
    from lockstep.spark.pipeline import Pipeline

logger = logs.get_logger(__name__)

_REPORT_SECONDS = 0.25
_POLL_SECONDS = 0.05
_BOUNDARY_SECONDS = 1
_MAX_ERROR = 2000
_FRESH_SECONDS = 3.0
"""A status older than this tells nothing about its site's phase."""


class Reporter(threading.Thread):
    """Rewrites status.json, and ends the site when its JVM is gone."""

    def __init__(self, run: RunFolder, site: str) -> None:
        super().__init__(name="lockstep-status", daemon=True)
        self._folder = run.site(site)
        self._site = site
        self._lock = threading.RLock()  # a signal handler reports too
        self._fields: dict[str, Any] = {"state": "starting", "error": None, "jvm_pid": None, "batch_ms": None}
        self._progress: Callable[[], Any] | None = None
        self._catch_up: CatchUp | None = None
        self.aside = False

    def update(self, **fields: Any) -> None:
        with self._lock:
            self._fields.update(fields)
        self.report()

    def watch(self, progress: Callable[[], Any]) -> None:
        self._progress = progress

    def reads(self, batch_seconds: float) -> None:
        """The query runs: `catching up` at first; `running` at once where nobody can say how far it is."""
        known = self._progress is not None
        self._catch_up = CatchUp(time.monotonic(), batch_seconds) if known else None
        self.update(state=CATCHING_UP if known else RUNNING)
        if not known:
            self._step_forward()

    def _step_forward(self) -> None:
        if self.aside:
            step_forward(os.getpid())

    def last(self, **fields: Any) -> None:
        """Report once more, without asking the JVM: it may be in the middle of another question."""
        self._progress = None
        self.update(**fields)

    def why_gone(self) -> str:
        """What the JVM wrote down before it ended itself, if it did."""
        try:
            words = self._folder.last_words.read_text().strip()
        except OSError:
            words = ""
        return words[:_MAX_ERROR] or f"the JVM (process {self.jvm_pid}) is gone"

    @property
    def jvm_pid(self) -> int:
        return int(self._fields["jvm_pid"] or 0)

    def run(self) -> None:
        while True:
            self.report()
            if self.jvm_pid and not process.alive(self.jvm_pid):
                die(self, self.why_gone())
            time.sleep(_REPORT_SECONDS)

    def report(self) -> None:
        now = time.time()
        progress = self._look(now)
        with self._lock:
            if self._fields["state"] == CATCHING_UP and self._caught_up(progress):
                self._fields["state"] = RUNNING
                self._step_forward()
            status = {
                **self._fields,
                **progress,
                "site": self._site,
                "pid": os.getpid(),
                "updated": now,
            }
            write_json(self._folder.status_file, status)

    def _caught_up(self, progress: dict[str, Any]) -> bool:
        positions = progress.get("positions") or {}
        done = sum(at for shards in positions.values() for at in shards.values())
        return self._catch_up is None or self._catch_up.reached(time.monotonic(), done, progress.get("lag"))

    def _look(self, now: float) -> dict[str, Any]:
        if self._progress is None:
            batch, boundary = last_commit(self._folder.checkpoint)
            phase_ms = round((now - boundary) * 1000) if boundary else None
            return {"batch_id": batch, "boundary": boundary or None, "phase_ms": phase_ms, "lag": None}
        try:
            seen = self._progress()
            return {
                "batch_id": seen.batch,
                "phase_ms": seen.phase_ms,
                "boundary": now - seen.phase_ms / 1000 if seen.phase_ms else None,
                "positions": seen.positions,
                "lag": seen.lag,
            }
        except Exception:  # the JVM is going: the main thread will say why
            return {}


def last_commit(checkpoint: Path) -> tuple[int | None, float]:
    """Number and time of the last batch that was committed: a boundary that every kind of site has."""
    newest, at = None, 0.0
    try:
        with os.scandir(checkpoint / "commits") as entries:
            for entry in entries:
                if entry.name.isdigit() and (newest is None or int(entry.name) > newest):
                    newest, at = int(entry.name), entry.stat().st_mtime
    except FileNotFoundError:
        pass
    return newest, at


def die(reporter: Reporter, reason: str, code: int = 1) -> None:
    """End this process and everything in its group, now; the status file says why."""
    try:
        reporter.last(state="failed", error=reason[:_MAX_ERROR])
        print(f"lockstep site: {reason}", file=sys.stderr, flush=True)
        end_jvm(reporter.jvm_pid)
    finally:
        os._exit(code)


def end_jvm(pid: int) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def choose_engine(noted_in: Path, choose: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """The engine of the run, or of one stage: what the first site chose. `choose()` gives (engine, why)."""
    noted = read_json(noted_in)
    if noted is None:
        engine, why = choose()
        mine = noted_in.with_name(f".{noted_in.name}.{os.getpid()}")
        write_json(mine, {"engine": engine, "why": why})
        try:
            os.link(mine, noted_in)  # fails if another site was first: then its choice counts
        except FileExistsError:
            pass
        mine.unlink()
        noted = read_json(noted_in) or {}
    return str(noted["engine"]), str(noted["why"])


class Neighbours:
    """What the status files of all sites say of their batch boundaries."""

    def __init__(self, run: RunFolder, settings: RunSettings, site: str) -> None:
        self._run = run
        self._names = settings.site_names
        self._site = site

    def wait_seconds(self, batch_ms: float, start_ms: float) -> float:
        """How long to wait so that this site's boundaries fall apart from those of the sites that run."""
        others = [at for name, at in _boundaries(self._statuses(), READING).items() if name != self._site]
        if others:
            return phase.delay_until_apart(time.time() * 1000, others, batch_ms, start_ms) / 1000
        return phase.stagger(self._names.index(self._site), len(self._names), batch_ms) / 1000

    def drift(self, batch_ms: float) -> phase.Drift:
        return phase.Drift(self._site, len(self._names), batch_ms)

    def look(self) -> tuple[dict[str, float], float]:
        """All sites' boundaries, or none if not all of them run, and the longest of their last stalls; in ms."""
        statuses = self._statuses()
        found = _boundaries(statuses, frozenset((RUNNING,)))
        stall_ms = max(float(status.get("boundary_ms") or 0) for status in statuses.values())
        return found if len(found) == len(self._names) else {}, stall_ms

    def _statuses(self) -> dict[str, dict[str, Any]]:
        return {name: self._run.site(name).status() for name in self._names}


def _boundaries(statuses: dict[str, dict[str, Any]], states: frozenset[str]) -> dict[str, float]:
    now = time.time()
    return {
        name: status["boundary"] * 1000
        for name, status in statuses.items()
        if status.get("state") in states and status.get("boundary")
        if now - status["updated"] < _FRESH_SECONDS
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lockstep.replicas.site")
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--site", required=True)
    given = parser.parse_args(arguments)
    logs.configure()
    run = RunFolder(given.run_folder)
    folder = run.site(given.site)
    folder.path.mkdir(parents=True, exist_ok=True)
    reporter = Reporter(run, given.site)
    signal.signal(signal.SIGTERM, lambda *_: _stopped(reporter))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    folder.last_words.unlink(missing_ok=True)
    reporter.aside = step_aside()
    reporter.start()
    try:
        _work(run, folder, given.site, reporter)
    except UsageError as error:
        die(reporter, str(error), 2)
    except LockstepError as error:
        die(reporter, str(error))
    except BaseException as error:
        traceback.print_exc()
        die(reporter, f"{type(error).__name__}: {_first_line(error)}")
    return 0


def _work(run: RunFolder, folder: ProcessFolder, site: str, reporter: Reporter) -> None:
    # Imported here: a status file with a reason exists before PySpark has a chance to fail.
    from lockstep.replicas.join import join
    from lockstep.replicas.stages import stages_of
    from lockstep.spark import engine as engines
    from lockstep.spark import session

    settings = RunSettings.read(run.settings)
    manifest = Manifest.read(run.manifest)
    if manifest is None:
        raise LockstepError(f"{run.path} has no manifest", hint="start the run with `lockstep run`")
    crash_point("site.starting")
    stages = stages_of(settings, manifest)
    conf = {
        **{n: v for one in stages for n, v in one.pipeline.spark_options.items()},
        **settings.spark_options,
    }
    reducers = int(conf.get("spark.sql.shuffle.partitions", session.SHUFFLE_PARTITIONS))
    spark = session.build(
        session.SiteSettings(
            name=f"{manifest.run}-{site}",
            folder=folder.path,
            slots=max(4, sum(session.slots_needed(stage.shards, reducers) for stage in stages)),
            master=settings.master or "",
            shuffle_partitions=reducers,
            conf=conf,
        )
    )
    reporter.update(jvm_pid=int(spark._jvm.java.lang.ProcessHandle.current().pid()))
    chosen = []
    for stage in stages:

        def choose(stage: "Stage" = stage) -> tuple[str, str]:
            planned = engines.plan(
                spark, stage.pipeline, stage.settings("realtime", settings, manifest, folder, site)
            )
            return engines.choose(
                planned, settings.engine, settings.allow, shards=stage.shards, broadcast=stage.broadcast
            )

        engine, why = choose_engine(run.engine(stage.name), choose)
        chosen.append(stage.settings(engine, settings, manifest, folder, site))
        reporter.update(engine=engine, why=why, batch_ms=chosen[-1].batch_length_ms)
    ahead = any(
        engines.reads_ahead(spark, one.pipeline, how) for one, how in zip(stages, chosen, strict=True)
    )
    named = {stage.name: how.engine for stage, how in zip(stages, chosen, strict=True)}
    if joined := join(run, site, named, lambda: reporter.update(state="copying a checkpoint")):
        reporter.update(joined=joined)
    local = session.is_local(settings.master or "")
    if local:  # on a cluster the readers, and what they know of their progress, are in other JVMs
        # In micro-batch a shard without new records is not read, so it has nothing to say.
        sealed = any(how.engine == "microbatch" for how in chosen)
        shards = 0 if sealed else sum(stage.shards for stage in stages)
        reporter.watch(lambda: engines.progress(spark, round(time.time() * 1000), shards))
    try:
        pairs = [(one.pipeline, how) for one, how in zip(stages, chosen, strict=True)]
        if long := [pair for pair in pairs if engines.wants_warm_up(pair[1])]:
            reporter.update(state="warming up")
            engines.warm_up(spark, long)
        _serve(spark, pairs, Neighbours(run, settings, site), reporter, local=local)
    except Exception as error:
        if process.alive(reporter.jvm_pid):
            traceback.print_exc()
            suspect = None if ahead else engines.suspect(spark)
            reporter.update(suspect=None if suspect is None else dataclasses.asdict(suspect))
            raise engines.failure(error, spark) from error
        raise LockstepError(reporter.why_gone()) from error
    raise LockstepError("the query ended by itself", hint="it will be started again")


def _serve(
    spark: "SparkSession",
    pairs: "list[tuple[Pipeline, EngineSettings]]",
    neighbours: Neighbours,
    reporter: Reporter,
    *,
    local: bool,
) -> None:
    """Run the queries until one ends, and raise what ended it; begin anew when boundaries have fallen together."""
    from lockstep.spark import engine as engines

    waits = [how.batch_length_ms / 1000 for _, how in pairs if how.engine == "microbatch"]
    batch_ms = pairs[-1][1].batch_length_ms
    prepared = [engines.prepare(spark, pipeline, how) for pipeline, how in pairs]
    delay = neighbours.wait_seconds(batch_ms, phase.START_MS)
    if delay > 0:
        reporter.update(state="waiting for its phase")
        time.sleep(delay)
    move_ms, stopped = phase.START_MS, 0.0
    for moves in itertools.count():
        crash_point("site.before-query")
        queries = [engines.begin(spark, writer) for writer in prepared]
        # In micro-batch there is no batch before there is input; in real time its first one says that it reads.
        while local and not waits and queries[0].isActive and engines.progress(spark, 0).batch < 0:
            time.sleep(_POLL_SECONDS)
        if moves and local:  # the first start says nothing: it is the slowest by far
            move_ms = (time.monotonic() - stopped) * 1000
            reporter.update(move_ms=round(move_ms))
        reporter.reads(max(waits, default=0.0))
        drift = None if waits else neighbours.drift(batch_ms)
        while not (ended := spark.streams.awaitAnyTermination(_BOUNDARY_SECONDS)):
            took = [engines.boundary_ms(query, how) for query, (_, how) in zip(queries, pairs, strict=True)]
            reporter.update(boundary_ms=max((ms for ms in took if ms is not None), default=None))
            if drift is not None and drift.noticed(time.time() * 1000, *neighbours.look()):
                prepared = [engines.prepare(spark, pipeline, how) for pipeline, how in pairs]
                time.sleep(neighbours.wait_seconds(batch_ms, move_ms))  # it reads on meanwhile
                everyone, _ = neighbours.look()
                if everyone:
                    break
        if ended:
            break
        logger.info("batch boundaries have fallen together: the query is stopped and started again")
        reporter.update(state="moving its boundary", moves=moves + 1)
        stopped = time.monotonic()
        engines.stop(spark, queries)
    for query in queries:
        if (error := query.exception()) is not None:
            raise error


def _stopped(reporter: Reporter) -> None:
    reporter.last(state="stopped")
    end_jvm(reporter.jvm_pid)
    os._exit(0)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


if __name__ == "__main__":
    sys.exit(main())
