"""What one site runs: a query for each stage of the pipeline, in one Spark application.

The last stage writes the run's output; each one before it writes a stage topic, which the sites' later stages read
and deduplicate. In names of folders and topics the last stage has no name of its own, so that a pipeline of one
stage looks as if there were no stages at all.
"""

from dataclasses import dataclass

from lockstep.errors import LockstepError, UsageError
from lockstep.replicas.layout import ProcessFolder, order_topic, seals_topic
from lockstep.replicas.manifest import Manifest
from lockstep.replicas.settings import RunSettings
from lockstep.spark.engine import EngineSettings, shard_count
from lockstep.spark.pipeline import Pipeline, load_stages

IN_BAND = "*"
"""Instead of a place in an order topic, for the Java source."""


@dataclass(frozen=True)
class Stage:
    pipeline: Pipeline
    manifest: Manifest
    name: str
    """Empty for the last one."""

    @property
    def shards(self) -> int:
        return shard_count(self.pipeline, self.manifest.partitions)

    @property
    def broadcast(self) -> bool:
        return any(group.has_broadcast for group in self.pipeline.groups)

    def order_places(self, run: str) -> list[str]:
        """For each input its place in the run's order topic, or that its queues hold heartbeats; else none."""
        if self.manifest.order == "inband":
            return [IN_BAND] * len(self.pipeline.groups)
        if not self.manifest.has_order_topic:
            return []
        places, base = [], self.manifest.order_base
        for group in self.pipeline.groups:
            places.append(f"{order_topic(run)}:{base}")
            base += group.shards(self.manifest.partitions)
        return places

    def settings(
        self, engine: str, run: RunSettings, whole: Manifest, folder: ProcessFolder, site: str
    ) -> EngineSettings:
        return EngineSettings(
            engine="microbatch" if engine == "microbatch" else "realtime",
            bootstrap_servers=run.bootstrap_servers,
            checkpoint=folder.checkpoint_of(self.name),
            site=site,
            output_partitions=self.manifest.output.partitions,
            input_partitions=self.manifest.partitions,
            seals=seals_topic(self.manifest.run),
            order=self.manifest.order,
            order_places=self.order_places(run.name),
            stage_topics=whole.stage_topics,
            origins=self.manifest.origins,
            kafka_options=run.kafka_options,
            batch_ms=run.batch_ms or 0,
            last_words=folder.last_words,
            allow=run.allow,
        )


def stages_of(settings: RunSettings, manifest: Manifest) -> list[Stage]:
    """The stages as the file declares them now, which has to be as they were frozen."""
    pipelines = load_stages(settings.pipeline_file)
    if len(pipelines) != len(manifest.all_stages):
        raise LockstepError(
            f"{settings.pipeline_file} declares other stages than run {manifest.run} began with",
            hint="undo the change, or start it as a new run with another --name",
        )
    stages = []
    for pipeline, frozen in zip(pipelines, manifest.all_stages, strict=True):
        if pipeline.fingerprint != frozen.fingerprint:
            raise UsageError(
                f"{settings.pipeline_file} changed since run {manifest.run} began",
                hint="undo the change, or start it as a new run with another --name",
            )
        stages.append(Stage(pipeline, frozen, "" if frozen is manifest else pipeline.name))
    return stages
