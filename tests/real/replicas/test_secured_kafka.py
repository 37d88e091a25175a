"""A Kafka that demands TLS, a user and a password: every part of a run gets in, and nobody sees the password."""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer as Plain
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from test_sites import read, wait

import lockstep
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.log.security import Security
from lockstep.replicas.job import Job
from lockstep.replicas.record import OutputRecord
from lockstep.setup import java

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
PAIR = Path(__file__).with_name("pipelines") / "pair.py"
INPUTS = 60


def keytool(store: Path, password: str, *arguments: str) -> None:
    tool = java.find().java.with_name("keytool")
    command = [str(tool), "-keystore", str(store), "-storepass:env", "STORE", "-alias", "broker", *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "STORE": password})


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    """A certificate for 127.0.0.1 that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    store, certificates = folder / "broker.p12", folder / "broker.pem"
    password = secrets.token_hex(8)
    make = "-genkeypair -keyalg EC -groupname secp256r1 -storetype PKCS12 -dname CN=localhost -validity 2"
    keytool(store, password, *make.split(), "-ext", "san=ip:127.0.0.1", "-ext", "bc=ca:true")
    keytool(store, password, "-exportcert", "-rfc", "-file", str(certificates))
    return Security("ann", secrets.token_hex(16), store, password, certificates)


@pytest.fixture(scope="module")
def secured(security: Security, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("secured"), security=security) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **security.client_options()})
        for topic in ("secured-left", "secured-right"):
            admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
        yield broker


def start(broker: Broker, security: Security, folder: Path, **changed: str) -> Job:
    os.environ["LOCKSTEP_TEST_PREFIX"] = "secured"
    options = {f"kafka.{name}": value for name, value in {**security.java_options(), **changed}.items()}
    return lockstep.run(
        PAIR,
        name="secured",
        folder=folder / "run",
        bootstrap_servers=broker.bootstrap_servers,
        clean="secured-clean",
        batch_ms=4000,
        options=options,
    )


def test_every_part_of_a_run_gets_in_and_the_password_stays_secret(
    secured: Broker, security: Security, tmp_path: Path
) -> None:
    connection: dict[str, Any] = {"bootstrap.servers": secured.bootstrap_servers, **security.client_options()}
    producer = Producer(connection)
    with start(secured, security, tmp_path) as job:
        for number in range(INPUTS):
            producer.produce(("secured-left", "secured-right")[number % 3 == 0], b"%d" % number)
            producer.flush()
        records: list[OutputRecord] = []
        with job.consumer("readers", commit_interval=0.1) as consumer:  # with a group: it commits, too
            read(consumer, records, INPUTS)
        assert sorted(json.loads(record.value or b"")["n"] for record in records) == [*range(1, INPUTS + 1)]
        assert len(clean(connection)) == INPUTS
        others = job.status()["others"]
        assert {"generator-1", "egress", "digest"} <= others.keys()
        wait(lambda: job.status()["others"]["digest"].get("latest"))
        assert all(other["starts"] == 1 for other in others.values()), "none of them had to try twice"
        lines = [line for one in psutil.process_iter() for line in cmdline(one)]
        assert not [line for line in lines if security.password in line]
        # A failing query prints its plan, in which the options are.
        admin = AdminClient(connection)
        admin.delete_topics(["secured-right"])["secured-right"].result(20)
        wait(lambda: any(text.startswith("site-") and "died" in text for _, text in job.events()))
        assert security.password not in json.dumps([job.status(), job.events()])
        known = {job.folder / "run.json", job.folder / "kafka.json"}
        assert all(file.stat().st_mode & 0o077 == 0 for file in known)
        files = [file for file in job.folder.rglob("*") if file.is_file() and file not in known]
        assert [file for file in files if file.name == "site.log" and "Logical Plan" in file.read_text()]
        assert not [file for file in files if holds(file, security.password)]


def test_a_wrong_password_is_told_in_a_line_before_anything_starts(
    secured: Broker, security: Security, tmp_path: Path
) -> None:
    wrong = security.java_options()["sasl.jaas.config"].replace(security.password, "guessed-it")
    began = time.monotonic()
    with pytest.raises(LockstepError, match="does not let us in") as caught:
        start(secured, security, tmp_path, **{"sasl.jaas.config": wrong})
    assert time.monotonic() - began < 8
    text = str(caught.value)
    assert "\n" not in text
    assert "uthentication" in text
    assert "guessed-it" not in text + caught.value.hint
    assert not (tmp_path / "run" / "sites").exists()


def test_a_certificate_that_nobody_vouches_for_is_told_too(
    secured: Broker, security: Security, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    store = tmp_path / "other.p12"
    make = "-genkeypair -keyalg EC -storetype PKCS12 -dname CN=other"
    keytool(store, "another", *make.split())
    keytool(store, "another", "-exportcert", "-rfc", "-file", str(other))
    with pytest.raises(LockstepError, match=r"does not let us in.*certificate"):
        start(secured, security, tmp_path, **{"ssl.truststore.location": str(other)})


def clean(connection: dict[str, Any]) -> list[bytes]:
    """What a consumer that knows nothing of us reads from the egress's topic."""
    consumer = Plain({**connection, "group.id": "stranger", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("secured-clean", 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < INPUTS and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def holds(file: Path, secret: str) -> bool:
    try:
        return secret.encode() in file.read_bytes()
    except FileNotFoundError:  # a temporary one
        return False
