"""What is frozen for the life of a run, and the checks that nobody changed it (design rule 7).

Identities and output partitions are functions of the pipeline, its shards and the partition counts. A site
that resumed with any of them changed would number or place its outputs differently, and deduplication would
silently drop or double records. So a mismatch is an error before anything starts, and nothing is lost.
"""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from lockstep.errors import LockstepError, UsageError
from lockstep.log.kafka_admin import is_offset
from lockstep.replicas.layout import write_json
from lockstep.replicas.topics import create_topic
from lockstep.spark.identity import IDENTITY_HEADER
from lockstep.spark.inputs import Input

VERSION = 2
_ATTEMPT_SECONDS = 1.0
_REFUSED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)


class InputTopic(msgspec.Struct, frozen=True):
    topic: str
    partitions: int
    topic_id: str
    origin: tuple[int, ...] = ()
    """Where the run begins in each partition."""


class OutputTopic(msgspec.Struct, frozen=True):
    topic: str
    partitions: int


class Manifest(msgspec.Struct, frozen=True):
    version: int
    run: str
    pipeline: str
    fingerprint: str
    inputs: tuple[InputTopic, ...]
    output: OutputTopic
    engine: str
    order: str
    """What the run follows: never `auto`."""
    order_why: str
    created: float
    stages: "tuple[Manifest, ...]" = ()
    """The stages before this one, in the order of their data flow."""
    order_base: int = 0
    """The partition of the order topic that belongs to the first shard."""

    @property
    def has_order_topic(self) -> bool:
        return self.order in ("liverobin", "kazoo")

    @property
    def all_stages(self) -> "tuple[Manifest, ...]":
        return (*self.stages, self)

    def explain_order(self) -> tuple[str, str]:
        """The order and why it is that one: of the first stage that needs more than `partition`, if any does."""
        ordered = [stage for stage in self.all_stages if stage.order != "partition"]
        stage = (ordered or [self])[0]
        return stage.order, stage.order_why

    @property
    def stage_topics(self) -> frozenset[str]:
        """What sites write to and sites read."""
        return frozenset(stage.output.topic for stage in self.stages)

    @property
    def partitions(self) -> dict[str, int]:
        return {topic.topic: topic.partitions for topic in self.inputs}

    @property
    def origins(self) -> dict[str, tuple[int, ...]]:
        return {topic.topic: topic.origin for topic in self.inputs}

    def write(self, path: Path) -> None:
        write_json(path, msgspec.to_builtins(self))

    @classmethod
    def read(cls, path: Path) -> "Manifest | None":
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise LockstepError(
                f"{path} is damaged or from another version: {error}",
                hint="give the run another --name, or remove its folder to start over",
            ) from error


def describe(
    admin: Any,
    *,
    run: str,
    pipeline: str,
    fingerprint: str,
    inputs: Sequence[str],
    output: str,
    output_partitions: int | None,
    engine: str,
    order: tuple[str, str],
    create_inputs: bool,
    timeout: float = 15.0,
) -> Manifest:
    """The manifest of a run that starts now; creates the output topic where it is missing. `order`: and why."""
    topics = _topics(admin, timeout)
    missing = [topic for topic in inputs if topic not in topics]
    if missing and not create_inputs:
        raise LockstepError(
            f"there is no topic {', '.join(missing)}", hint="create it, or check the pipeline's inputs"
        )
    for topic in missing:
        create_topic(admin, NewTopic(topic, 1), timeout)
    described = _describe_topics(admin, list(inputs), timeout)
    if output not in topics:
        count = output_partitions or max(partitions for partitions, _ in described.values())
        create_topic(admin, NewTopic(output, count), timeout)
    count = _describe_topics(admin, [output], timeout)[output][0]
    if output_partitions is not None and output_partitions != count:
        raise UsageError(
            f"topic {output} has {count} partitions, not {output_partitions}",
            hint="leave the count out, or write to another topic",
        )
    return Manifest(
        version=VERSION,
        run=run,
        pipeline=pipeline,
        fingerprint=fingerprint,
        inputs=tuple(
            InputTopic(topic, *described[topic], earliest(admin, topic, described[topic][0], timeout))
            for topic in inputs
        ),
        output=OutputTopic(output, count),
        engine=engine,
        order=order[0],
        order_why=order[1],
        created=time.time(),
    )


def choose_order(
    requested: str, inputs: Sequence[Input], stage_topics: Collection[str] = ()
) -> tuple[str, str]:
    """The order of a stage and one line that says why. Refuses `partition` where it is none.

    `inband` is for stages that read only what other stages write: nobody else's topics get heartbeats.
    """
    merged = [one.name for one in inputs if one.needs_order]
    foreign = [topic for one in inputs for topic in one.topics if topic not in stage_topics]
    if requested == "inband":
        if not merged:
            return "partition", "every input is one topic, whose offsets are its order"
        if foreign:
            return "liverobin", f"heartbeats go into stage topics only, and {foreign[0]} is none"
        return "inband", "as requested"
    if requested == "auto":
        if merged:
            return "liverobin", f"input {merged[0]} has several queues"
        return "partition", "every input is one topic, whose offsets are its order"
    if requested == "partition" and merged:
        raise UsageError(
            f"input {merged[0]} merges several queues, which have no order among themselves",
            hint="use --order liverobin or kazoo, or leave it out",
        )
    return requested, "as requested"


def create_order_topic(admin: Any, topic: str, shards: int, timeout: float = 15.0) -> None:
    """One partition for each shard; it keeps everything, and only order records go in."""
    if topic not in _topics(admin, timeout):
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        create_topic(admin, NewTopic(topic, shards, config=kept), timeout)


def create_heartbeat_topic(admin: Any, topic: str, timeout: float = 15.0) -> None:
    """Compacted: only the last number is needed, and that one always."""
    if topic not in _topics(admin, timeout):
        newest = {"cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": "10485760"}
        create_topic(admin, NewTopic(topic, 1, config=newest), timeout)


def earliest(admin: Any, topic: str, partitions: int, timeout: float = 15.0) -> tuple[int, ...]:
    asked = {TopicPartition(topic, partition): OffsetSpec.earliest() for partition in range(partitions)}
    try:
        found = {one.partition: future.result(timeout) for one, future in admin.list_offsets(asked).items()}
    except KafkaException as error:
        raise LockstepError(f"cannot ask where {topic} begins: {error.args[0].str()}") from error
    if lost := [partition for partition, answer in found.items() if not is_offset(answer)]:
        raise LockstepError(
            f"cannot ask where {topic} begins: the broker of partition {lost[0]} does not answer",
            hint="try again when it is there",
        )
    return tuple(found[partition].offset for partition in range(partitions))


def growing(manifest: Manifest, pipelines: Sequence[Sequence[Input]]) -> frozenset[str]:
    """The topics that may have got partitions since: whoever reads them takes those in. By stage, its inputs."""
    takes: set[str] = set()
    refuses: set[str] = set()
    for stage, groups in zip(manifest.all_stages, pipelines, strict=True):
        for group in groups:
            found = group.growing(stage.order, stage.partitions, manifest.stage_topics)
            takes |= found
            refuses.update(topic for topic in group.topics if topic not in found)
    return frozenset(takes - refuses)


def check(frozen: Manifest, now: Manifest, growing: Collection[str] = ()) -> None:
    """Raise unless a run that was started as `frozen` can go on as `now`. `growing`: see there."""
    another = "give this run another --name, or remove its folder to start over"
    if frozen.version != now.version:
        raise LockstepError(f"run {frozen.run} was made by another version of Lockstep", hint=another)
    if frozen.pipeline != now.pipeline or frozen.fingerprint != now.fingerprint:
        raise LockstepError(
            f"the checkpoint of run {frozen.run} belongs to another pipeline ({frozen.pipeline}, "
            f"{frozen.fingerprint[:12]}), not to this one ({now.pipeline}, {now.fingerprint[:12]})",
            hint=another,
        )
    if "auto" not in (frozen.engine, now.engine) and frozen.engine != now.engine:
        raise LockstepError(
            f"run {frozen.run} uses the {frozen.engine} engine, not {now.engine}", hint=another
        )
    if frozen.order != now.order:
        raise LockstepError(f"run {frozen.run} uses order {frozen.order}, not {now.order}", hint=another)
    if len(frozen.stages) != len(now.stages):
        raise LockstepError(f"run {frozen.run} has other stages", hint=another)
    for earlier, later in zip(frozen.stages, now.stages, strict=True):
        check(earlier, later, growing)
    for before, after in zip(frozen.inputs, now.inputs, strict=False):
        _check_input(before, after, another, grows=before.topic in growing)
    if [topic.topic for topic in frozen.inputs] != [topic.topic for topic in now.inputs]:
        raise LockstepError(f"run {frozen.run} reads other topics", hint=another)
    if frozen.output.topic != now.output.topic:
        raise LockstepError(f"run {frozen.run} writes to {frozen.output.topic}", hint=another)
    if frozen.output.partitions != now.output.partitions:
        raise LockstepError(
            f"topic {frozen.output.topic} has {now.output.partitions} partitions; "
            f"run {frozen.run} froze them at {frozen.output.partitions}",
            hint="outputs would land elsewhere and be taken for new: start a new run on a new output topic",
        )


def refuse_used_output(bootstrap_servers: str, options: Mapping[str, Any], output: OutputTopic) -> None:
    """A new run needs an output topic that no other run wrote to.

    Identities begin anew with a run. Readers that know the topic would take the new outputs for those that
    they have seen, and drop them.
    """
    connection = {"log_level": 2, **options, "bootstrap.servers": bootstrap_servers}
    consumer = Consumer({**connection, "group.id": "lockstep.look", "enable.auto.commit": False})
    try:
        places = []
        for partition in range(output.partitions):
            place = TopicPartition(output.topic, partition)
            low, high = watermarks(consumer, place)
            if high > low:
                places.append(TopicPartition(output.topic, partition, high - 1))
        consumer.assign(places)
        deadline = time.monotonic() + 3.0
        unseen = len(places)
        while unseen and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            unseen -= 1
            if any(name == IDENTITY_HEADER for name, _ in message.headers() or ()):
                raise LockstepError(
                    f"topic {output.topic} holds outputs of another run, and readers would take new ones "
                    "for duplicates of them",
                    hint="let the pipeline write to a new topic, or delete this one first",
                )
    except KafkaException as error:
        raise LockstepError(f"cannot look into {output.topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def connect(bootstrap_servers: str, options: Mapping[str, Any], timeout: float = 8.0) -> Any:
    """An AdminClient of a broker that answers, and lets us in."""
    told: list[Any] = []
    try:
        admin = AdminClient(
            {"log_level": 0, **options, "bootstrap.servers": bootstrap_servers, "error_cb": told.append}
        )
    except KafkaException as error:
        raise UsageError(f"Kafka's client refuses these options: {error.args[0].str()}") from error
    deadline = time.monotonic() + timeout
    while True:
        try:
            _topics(admin, _ATTEMPT_SECONDS, bootstrap_servers)
            return admin
        except LockstepError:
            admin.poll(0)  # what librdkafka has to say about the connection comes only now
            refused = next((one for one in told if one.code() in _REFUSED), None)
            if refused is not None:
                raise LockstepError(
                    f"Kafka at {bootstrap_servers} does not let us in: {_without_address(refused.str())}",
                    hint="check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*",
                ) from None
            if time.monotonic() > deadline:
                raise


def _without_address(text: str) -> str:
    """librdkafka says where first, and how long it took last."""
    return re.sub(r" \(after \d+ms.*", "", text.partition(": ")[2] or text)


def watermarks(consumer: Any, place: TopicPartition, timeout: float = 10.0) -> tuple[int, int]:
    """Where a partition begins and ends."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=timeout)
            return low, high
        except KafkaException:  # a partition that was just created has no leader for a moment
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _check_input(before: InputTopic, after: InputTopic, another: str, *, grows: bool) -> None:
    if before.topic == after.topic and before.topic_id != after.topic_id:
        raise LockstepError(
            f"input topic {before.topic} was deleted and created anew: its positions mean other records now",
            hint=another,
        )
    if grows and before.partitions < after.partitions:
        return
    if before.topic == after.topic and before.partitions != after.partitions:
        raise LockstepError(
            f"input topic {before.topic} has {after.partitions} partitions; "
            f"the run froze them at {before.partitions}",
            hint=another,
        )


def _topics(admin: Any, timeout: float, where: str = "") -> dict[str, Any]:
    try:
        topics: dict[str, Any] = admin.list_topics(timeout=timeout).topics
    except KafkaException as error:
        raise LockstepError(
            f"no Kafka broker answers{' at ' + where if where else ''}",
            hint="start it, check --bootstrap-servers, or leave that out for an embedded broker",
        ) from error
    return topics


def _describe_topics(admin: Any, names: list[str], timeout: float) -> dict[str, tuple[int, str]]:
    deadline = time.monotonic() + timeout
    while True:
        try:
            futures = admin.describe_topics(TopicCollection(names), request_timeout=timeout)
            described = {name: future.result(timeout) for name, future in futures.items()}
            return {name: (len(topic.partitions), str(topic.topic_id)) for name, topic in described.items()}
        except KafkaException as error:
            # A topic that was just created takes a moment to be known to the broker that we ask.
            unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not unknown or time.monotonic() > deadline:
                reason = error.args[0].str()
                raise LockstepError(f"cannot describe {', '.join(names)}: {reason}") from error
        time.sleep(0.05)
