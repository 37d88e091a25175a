"""Promises of the manifest: a run goes on only with what it was started with."""

from pathlib import Path

import msgspec
import pytest

from lockstep.errors import LockstepError, UsageError
from lockstep.replicas.client_options import client_options
from lockstep.replicas.layout import check_name
from lockstep.replicas.manifest import VERSION, InputTopic, Manifest, OutputTopic, check, growing
from lockstep.replicas.settings import RunSettings, parse_options
from lockstep.spark.inputs import Input, broadcast

FROZEN = Manifest(
    version=VERSION,
    run="fraud",
    pipeline="alerts",
    fingerprint="a" * 64,
    inputs=(InputTopic("payments", 4, "id-1"),),
    output=OutputTopic("alerts", 3),
    engine="realtime",
    order="partition",
    order_why="one topic",
    created=1.0,
)


def test_an_unchanged_run_goes_on() -> None:
    check(FROZEN, msgspec.structs.replace(FROZEN, created=2.0))
    check(FROZEN, msgspec.structs.replace(FROZEN, engine="auto"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": VERSION + 1}, "another version of Lockstep"),
        ({"pipeline": "other"}, "belongs to another pipeline"),
        ({"fingerprint": "b" * 64}, "belongs to another pipeline"),
        ({"engine": "microbatch"}, "uses the realtime engine"),
        ({"order": "liverobin"}, "uses order partition"),
        ({"inputs": (InputTopic("payments", 5, "id-1"),)}, "has 5 partitions; the run froze them at 4"),
        ({"inputs": (InputTopic("payments", 4, "id-2"),)}, "deleted and created anew"),
        ({"inputs": (InputTopic("refunds", 4, "id-1"),)}, "reads other topics"),
        ({"inputs": (*FROZEN.inputs, InputTopic("refunds", 1, "id-3"))}, "reads other topics"),
        ({"output": OutputTopic("other", 3)}, "writes to alerts"),
        ({"output": OutputTopic("alerts", 4)}, "has 4 partitions; run fraud froze them at 3"),
    ],
)
def test_a_changed_run_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(LockstepError, match=message) as caught:
        check(FROZEN, msgspec.structs.replace(FROZEN, **change))
    assert caught.value.hint


def merged(left: int, right: int, *, order: str = "liverobin") -> Manifest:
    inputs = (InputTopic("left", left, "id-1"), InputTopic("right", right, "id-2"))
    return msgspec.structs.replace(FROZEN, inputs=inputs, order=order)


@pytest.mark.parametrize("declared", [("left", "right"), "left"])
def test_a_run_goes_on_when_partitions_were_added_to_an_input_of_one_shard(declared: object) -> None:
    groups = [Input.declare(declared), Input.declare("right")]  # type: ignore[arg-type]
    grows = growing(merged(1, 1), [groups])
    assert grows == {"left", "right"}
    check(merged(1, 1), merged(1, 3), grows)
    recreated = (InputTopic("left", 2, "id-9"), InputTopic("right", 1, "id-2"))
    with pytest.raises(LockstepError, match="deleted and created anew"):
        check(merged(1, 1), msgspec.structs.replace(merged(1, 1), inputs=recreated), grows)
    with pytest.raises(LockstepError, match="left has 1 partitions; the run froze them at 2"):
        check(merged(2, 1), merged(1, 1), grows)


@pytest.mark.parametrize(
    ("began", "groups"),
    [
        (merged(2, 2), [Input.declare(("left", "right"))]),
        (merged(1, 1, order="kazoo"), [Input.declare(("left", "right"))]),
        (merged(1, 1, order="partition"), [Input.declare("left"), Input.declare("right")]),
        (merged(1, 1), [Input.declare(("left", broadcast("right")))]),
        (merged(1, 1), [Input.declare(("left", "right")), Input.declare(("left", broadcast("right")))]),
    ],
)
def test_where_a_key_could_move_to_another_shard_added_partitions_are_refused(
    began: Manifest, groups: list[Input]
) -> None:
    grows = growing(began, [groups])
    assert "right" not in grows
    later = merged(began.inputs[0].partitions, 9, order=began.order)
    with pytest.raises(LockstepError, match="right has 9 partitions; the run froze them at"):
        check(began, later, grows)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    FROZEN.write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json") == FROZEN
    assert Manifest.read(tmp_path / "none.json") is None
    (tmp_path / "damaged.json").write_text('{"version": "x"}')
    with pytest.raises(LockstepError, match="damaged"):
        Manifest.read(tmp_path / "damaged.json")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 82, "a/b"])
def test_names_that_cannot_be_paths_or_topics_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)
    assert check_name("fraud-2.eu_west") == "fraud-2.eu_west"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"sites": 0}, "1 to 16 sites"),
        ({"sites": 17}, "1 to 16 sites"),
        ({"engine": "warp"}, "no engine"),
        ({"order": "alphabetical"}, "no order"),
        ({"on_divergence": "panic"}, "no policy"),
        ({"batch_ms": 5}, "out of bounds"),
    ],
)
def test_settings_out_of_bounds_are_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunSettings(name="a", pipeline_file="p.py", bootstrap_servers="b", **setting)  # type: ignore[arg-type]


def test_options_are_spark_or_kafka() -> None:
    assert parse_options(["spark.a=1", "kafka.b=x=y"]) == {"spark.a": "1", "kafka.b": "x=y"}
    for wrong in ("spark.a", "a=1", "", "kafka.a=@/no/such/file"):
        with pytest.raises(UsageError):
            parse_options([wrong])


def test_an_option_that_others_must_not_see_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "login").write_text('Module required password="x";\n')
    given = parse_options([f"kafka.sasl.jaas.config=@{tmp_path / 'login'}"])
    assert given == {"kafka.sasl.jaas.config": 'Module required password="x";'}


def test_java_options_become_librdkafkas() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p\\"w";'
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "max.poll.records": "5",
    }
    assert client_options(options) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": 'p"w',
        "ssl.ca.location": "/ca.pem",
    }
    assert client_options({"ssl.endpoint.identification.algorithm": ""}) == {
        "ssl.endpoint.identification.algorithm": "none"
    }
    store = {"ssl.keystore.location": "/me.p12", "ssl.keystore.type": "PKCS12", "ssl.keystore.password": "x"}
    assert client_options(store) == {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"}
    pem = {"ssl.keystore.location": "/me.pem", "ssl.keystore.type": "PEM"}
    assert client_options(pem) == {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem"}


@pytest.mark.parametrize(
    ("written", "password"),
    [('"a b"', "a b"), (r'"a\"b\\c"', 'a"b\\c'), ("'it'", "it"), ("plain", "plain")],
)
def test_passwords_are_read_as_java_reads_them(written: str, password: str) -> None:
    options = {"sasl.jaas.config": f"Some.Module required username=me password={written};"}
    assert client_options(options) == {"sasl.username": "me", "sasl.password": password}


@pytest.mark.parametrize("what", ["truststore", "keystore"])
def test_stores_that_only_java_can_read_are_refused(what: str) -> None:
    with pytest.raises(UsageError, match="only Java can read"):
        client_options({f"ssl.{what}.location": "/store.jks"})


def test_order_inband_in_micro_batches_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="real time only"):
        RunSettings(
            name="r", pipeline_file="p.py", bootstrap_servers="b:1", engine="microbatch", order="inband"
        )
