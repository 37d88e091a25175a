"""`lockstep.run`: a pipeline as live replicas, from Python.

    with lockstep.run("pipeline.py", sites=2) as job:
        for record in job.consumer():
            ...

Without bootstrap servers the run has a broker of its own. Everything that was started ends with the `with`
block, and with this process, however it dies; with `detach=True` it lives on and is taken over by whoever
runs the same name again.
"""

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from lockstep import home
from lockstep.errors import LockstepError, UsageError
from lockstep.log.options import read_options, write_options
from lockstep.replicas import manifest as manifests
from lockstep.replicas import orders
from lockstep.replicas.client_options import client_options
from lockstep.replicas.consumer import Consumer
from lockstep.replicas.layout import RunFolder, check_name, heartbeat_topic, order_topic, read_json
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.notebook import write_module
from lockstep.replicas.settings import Engine, Order, Policy, RunSettings
from lockstep.replicas.supervisor import START_SECONDS, TRIMMER, Child, Supervisor, own_command, take_lock
from lockstep.replicas.trim_plan import readers_of
from lockstep.spark.pipeline import Pipeline, load_stages

_BROKER_SECONDS = 60.0


class Job:
    """A run that was started or adopted by this process."""

    def __init__(self, supervisor: Supervisor, manifest: Manifest) -> None:
        self._supervisor = supervisor
        self.manifest = manifest
        self.name = supervisor.settings.name
        self.folder = supervisor.run.path
        self.bootstrap_servers = supervisor.settings.bootstrap_servers
        self.sites = supervisor.settings.site_names

    @property
    def topic(self) -> str:
        """Where all sites write, duplicates included: read it with `consumer()`."""
        return self.manifest.output.topic

    @property
    def clean(self) -> str | None:
        """The topic of the egress, if the run has one: every output once, for any consumer."""
        return self._supervisor.settings.clean

    def engine(self) -> tuple[str, str]:
        """The engine and why; empty as long as no site has chosen."""
        noted = read_json(self._supervisor.run.engine()) or {}
        return str(noted.get("engine", "")), str(noted.get("why", ""))

    def status(self) -> dict[str, Any]:
        """Sites with state, batch, phase, lag and restarts; the engine; divergence, if any was seen."""
        engine, why = self.engine()
        status = self._supervisor.status()
        told = [o.get("divergence") for name, o in status["others"].items() if name.startswith("digest")]
        divergence = next(filter(None, told), None)
        order, order_why = self.manifest.explain_order()
        return {
            **status,
            "engine": engine,
            "why": why,
            "order": order,
            "order_why": order_why,
            "void_order_records": orders.void_records(self._supervisor.run),
            "divergence": divergence,
        }

    def events(self) -> list[tuple[float, str]]:
        """When what happened to which site."""
        return list(self._supervisor.events)

    def check(self) -> None:
        """Raise if the run has failed."""
        self._supervisor.check()

    def wait_running(self, timeout: float = START_SECONDS, *, at_least: int | None = None) -> "Job":
        self._supervisor.wait_running(timeout, at_least=at_least)
        return self

    def kill(self, site: str) -> int:
        """kill -9 of a site, to see that nobody notices. Returns the pid that was killed."""
        return self._supervisor.kill(site)

    def pid(self, name: str) -> int | None:
        """The process of a site, a generator, a leader: of anything that `status()` names."""
        return self._supervisor.pid(name)

    def consumer(self, group: str | None = None, **more: Any) -> Consumer:
        """A deduplicating consumer of the run's output."""
        options = {**read_options(str(self._supervisor.run.kafka_options)), **more.pop("options", {})}
        return Consumer(self.bootstrap_servers, self.topic, group, options=options, **more)

    def stop(self) -> None:
        """End all sites and whatever else the run started."""
        self._supervisor.stop()

    def release(self) -> None:
        """Leave a detached run running: another process can take it over."""
        self._supervisor.release()

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def run(
    pipeline: Pipeline | str | Path,
    *,
    sites: int = 2,
    engine: Engine = "auto",
    order: Order = "auto",
    coordination: str | None = None,
    period_ms: float | None = None,
    bootstrap_servers: str | None = None,
    master: str | None = None,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    allow: Sequence[str] = (),
    on_divergence: Policy = "warn",
    batch_ms: int | None = None,
    output_partitions: int | None = None,
    clean: str | None = None,
    digests: bool = True,
    trim_seconds: float = 60.0,
    detach: bool = False,
    folder: Path | None = None,
    wait: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Job:
    """Start a pipeline on `sites` sites and return once all of them run (or at once, without `wait`)."""
    if isinstance(pipeline, Pipeline):
        folder = folder or home.runs_folder() / check_name(name or pipeline.name)
    file, stages = declared_in(pipeline, folder)
    run_name = check_name(name or stages[-1].name)
    where = RunFolder((folder or home.runs_folder() / run_name).absolute())
    settings = RunSettings(
        name=run_name,
        pipeline_file=file,
        bootstrap_servers=bootstrap_servers or "",
        sites=sites,
        engine=engine,
        order=order,
        coordination=coordination,
        period_ms=period_ms,
        master=master,
        batch_ms=batch_ms,
        options={option: str(value) for option, value in (options or {}).items()},
        allow=tuple(allow),
        on_divergence=on_divergence,
        output_partitions=output_partitions,
        clean=clean,
        digests=digests,
        trim_seconds=trim_seconds,
    )
    lock = take_lock(where)
    broker: Child | None = None
    try:
        if bootstrap_servers is None:
            say("starting the embedded broker")
            broker = start_broker(where, tied=not detach)
            servers = broker.folder.status()["bootstrap_servers"]
            settings = msgspec.structs.replace(settings, bootstrap_servers=servers)
        options_of_all = {n: v for stage in stages for n, v in stage.kafka_options.items()}
        connection = client_options({**options_of_all, **settings.kafka_options})
        manifest = freeze(where, settings, stages, connection, create_inputs=broker is not None)
        write_options(where.kafka_options, connection)
    except BaseException:
        if broker is not None:
            broker.folder.end(grace=5)
        lock.close()
        raise
    supervisor = Supervisor(where, settings, tied=not detach, lock=lock, say=say)
    job = Job(supervisor, manifest)
    try:
        if broker is not None:
            supervisor.others["broker"] = broker
        supervisor.start()
        for role, command in orders.commands(where, settings, manifest, stages).items():
            supervisor.add(role, where.orders(role), command, reports=False)
        readers = readers_of(manifest, stages)
        readers.write(where.readers)
        if readers.anything and trim_seconds:
            command = own_command("lockstep.replicas.trim_watch", "--run-folder", str(where.path))
            supervisor.add(TRIMMER, where.orders(TRIMMER), command)
        if clean is not None:
            supervisor.add("egress", where.egress, egress_command(where, settings, manifest))
        if digests and sites > 1:
            for number, stage in enumerate(stages):
                last = number == len(stages) - 1
                of = () if last else ("--stage", stage.name)
                command = own_command("lockstep.replicas.digest_watch", "--run-folder", str(where.path), *of)
                digest = where.digest("" if last else stage.name)
                supervisor.add(digest.path.name, digest, command)
        if wait:
            job.wait_running()
    except BaseException:
        job.stop()
        raise
    return job


def declared_in(
    pipeline: Pipeline | str | Path, folder: Path | None = None
) -> tuple[str, tuple[Pipeline, ...]]:
    """(`FILE:NAME`, stages): sites are processes of their own, and load the pipeline from its file."""
    if isinstance(pipeline, Pipeline):
        try:
            file = inspect.getsourcefile(pipeline.function)
        except TypeError:
            file = None
        if file is None or not Path(file).is_file():
            path = (folder or home.runs_folder() / pipeline.name).absolute() / "pipeline.py"
            write_module(pipeline, path)
            file = str(path)
        return f"{Path(file).absolute()}:{pipeline.name}", (pipeline,)
    path_text, separator, one = str(pipeline).partition(":")
    text = f"{Path(path_text).absolute()}{separator}{one}"
    # Loading makes the file's neighbours importable for Spark's Python workers, through the environment. That
    # is the sites' affair: our own processes must not take a neighbour called queue.py for Python's.
    before = os.environ.get("PYTHONPATH")
    try:
        return text, load_stages(text)
    except UsageError as error:
        if "SESSION_OR_CONTEXT_NOT_EXISTS" in error.message:  # PySpark asks the JVM to read "string"
            raise UsageError(
                f"{path_text} needs a Spark session as soon as it is loaded: a UDF with its type as text?",
                hint="give the type as an object, udf(StringType()), or define the UDF inside the pipeline",
            ) from error
        raise
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def freeze(
    where: RunFolder,
    settings: RunSettings,
    stages: Sequence[Pipeline],
    options: Mapping[str, Any],
    *,
    create_inputs: bool,
) -> Manifest:
    """Freeze the manifest of a new run, or check that an older one still holds. `options` are librdkafka's."""
    admin = manifests.connect(settings.bootstrap_servers, options)
    frozen = Manifest.read(where.manifest)
    described: list[Manifest] = []
    shards = 0
    began = frozen.all_stages if frozen is not None and len(frozen.all_stages) == len(stages) else None
    for number, pipeline in enumerate(stages):
        last = number == len(stages) - 1
        one = manifests.describe(
            admin,
            run=settings.name if last else f"{settings.name}.{pipeline.name}",
            pipeline=pipeline.name,
            fingerprint=pipeline.fingerprint,
            inputs=pipeline.topics,
            output=pipeline.output,
            output_partitions=settings.output_partitions,
            engine=settings.engine,
            order=manifests.choose_order(
                settings.order, pipeline.groups, [earlier.output for earlier in stages[:number]]
            ),
            create_inputs=create_inputs and frozen is None,
        )
        described.append(msgspec.structs.replace(one, order_base=shards))
        # A run has the shards that it began with, whatever was added to its topics.
        partitions = {**one.partitions, **(began[number].partitions if began is not None else {})}
        found = sum(group.shards(partitions) for group in pipeline.groups)
        shards += found if one.has_order_topic else 0
    now = msgspec.structs.replace(described[-1], stages=tuple(described[:-1]))
    if frozen is not None:
        grows = manifests.growing(frozen, [pipeline.groups for pipeline in stages]) if began else ()
        manifests.check(frozen, now, grows)
        return frozen
    for one in now.all_stages:
        manifests.refuse_used_output(settings.bootstrap_servers, options, one.output)
    if shards:
        manifests.create_order_topic(admin, order_topic(settings.name), shards)
    if any(one.order == "inband" for one in now.all_stages):
        manifests.create_heartbeat_topic(admin, heartbeat_topic(settings.name))
    now.write(where.manifest)
    return now


def start_broker(where: RunFolder, *, tied: bool) -> Child:
    """The run's embedded broker, started or adopted."""
    command = own_command("lockstep.replicas.run_broker", str(where.broker.path))
    broker = Child("broker", where.broker, command)
    if not broker.adopt():
        broker.folder.end(grace=0)
        broker.launch(tied=tied)
    deadline = time.monotonic() + _BROKER_SECONDS
    while broker.folder.status().get("state") != "running":
        if broker.exit_code() is not None or time.monotonic() > deadline:
            error = broker.folder.status().get("error") or "it did not start in time"
            broker.folder.end(grace=0)
            raise LockstepError(f"the embedded broker failed: {error}", hint=f"its log: {broker.folder.log}")
        time.sleep(0.02)
    return broker


def egress_command(where: RunFolder, settings: RunSettings, manifest: Manifest) -> list[str]:
    return own_command(
        "lockstep.replicas.egress",
        *("--bootstrap-servers", settings.bootstrap_servers),
        *("--source", manifest.output.topic),
        *("--clean", str(settings.clean)),
        *("--name", settings.name),
        *("--status", str(where.egress.status_file)),
        *("--options", str(where.kafka_options)),
    )
