"""Which processes make a run's order, and what they are told."""

from pathlib import Path

import lockstep
from lockstep.replicas import orders
from lockstep.replicas.layout import RunFolder
from lockstep.replicas.manifest import VERSION, InputTopic, Manifest, OutputTopic
from lockstep.replicas.settings import RunSettings
from lockstep.replicas.stages import Stage
from lockstep.spark.pipeline import Pipeline

SETTINGS = RunSettings(name="shop", pipeline_file="shop.py", bootstrap_servers="127.0.0.1:9092")


def stage(name: str, order: str, base: int, *inputs: InputTopic) -> Manifest:
    return Manifest(
        version=VERSION,
        run=f"shop.{name}",
        pipeline=name,
        fingerprint="",
        inputs=inputs,
        output=OutputTopic(f"{name}-out", 1),
        engine="auto",
        order=order,
        order_why="",
        created=0.0,
        order_base=base,
    )


def declared(*inputs: object) -> Pipeline:
    return lockstep.pipeline(inputs=inputs, output="out", name="p")(lambda *frames: frames[0])  # type: ignore[arg-type]


MERGED = declared(("a", lockstep.broadcast("rules")))
ALONE = declared("b")
A, B = InputTopic("a", 2, "id-a", (5, 6)), InputTopic("b", 1, "id-b", (0,))
RULES = InputTopic("rules", 1, "id-r", (9,))


def test_a_run_without_merged_inputs_needs_none(tmp_path: Path) -> None:
    manifest = stage("only", "partition", 0, B)
    assert orders.commands(RunFolder(tmp_path), SETTINGS, manifest, [ALONE]) == {}


def test_generators_serve_every_shard_and_begin_where_the_run_begins(tmp_path: Path) -> None:
    manifest = stage("only", "liverobin", 0, A, RULES)
    commands = orders.commands(RunFolder(tmp_path), SETTINGS, manifest, [MERGED])
    assert set(commands) == {"generator-1", "generator-2"}
    told = " ".join(commands["generator-2"])
    assert "--rank 1" in told and "--order-topic shop.order" in told
    assert "--shard a:0@5,rules:0@9 --shard a:1@6,rules:0@9" in told


def test_leaders_find_the_ensemble_of_the_run_also_when_it_is_taken_over(tmp_path: Path) -> None:
    manifest = stage("only", "kazoo", 0, A, RULES)
    first = orders.commands(RunFolder(tmp_path), SETTINGS, manifest, [MERGED])
    assert sorted(first) == ["coordination-1", "coordination-2", "coordination-3", "leader-1", "leader-2"]
    assert orders.commands(RunFolder(tmp_path), SETTINGS, manifest, [MERGED]) == first


def test_stages_share_the_order_topic_one_behind_the_other() -> None:
    first, second = stage("one", "liverobin", 0, A, RULES), stage("two", "liverobin", 2, B)
    assert Stage(MERGED, first, "one").order_places("shop") == ["shop.order:0"]
    assert Stage(ALONE, second, "").order_places("shop") == ["shop.order:2"]


def test_void_records_are_counted_from_what_the_processes_say(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert orders.void_records(run) == 0
    for number, records in ((1, 7), (2, 3)):
        log = run.orders(f"generator-{number}").log
        log.parent.mkdir(parents=True)
        log.write_text(
            f'started\n{{"is":"void","at":1,"records":1}}\n{{"is":"void","at":2,"records":{records}}}\n'
        )
    assert orders.void_records(run) == 7
