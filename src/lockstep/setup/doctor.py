"""Check the machine: each check returns findings, and each finding that is not good says what to do.

A check never raises for what it came to find. `broken` means that commands will fail; `doubtful` that they
run but may be slow, short of room or restricted.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from lockstep import home
from lockstep.errors import LockstepError
from lockstep.setup import archive, build, jars, java

GIB = 1 << 30
NEEDED_MEMORY, WANTED_MEMORY = 2 * GIB, 4 * GIB
"""One broker and one site fit into the first; two sites and the tests want the second."""
NEEDED_DISK, WANTED_DISK = 1 * GIB, 5 * GIB
WANTED_FILES = 4096
KAFKA_SECONDS = 5.0


class State(StrEnum):
    GOOD = "good"
    DOUBTFUL = "doubtful"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    subject: str
    state: State
    found: str
    todo: str = ""


def checks(
    bootstrap_servers: str | None = None, kafka_options: Mapping[str, str] | None = None
) -> list[tuple[str, Callable[[], list[Finding]]]]:
    """What there is to check, in the order in which one would repair it: a name and a function each."""
    return [
        ("Python", check_python),
        ("Java", check_java),
        ("memory", check_memory),
        ("processors", check_processors),
        ("disk", check_disk),
        ("ports", check_ports),
        ("open files", check_open_files),
        ("jars", check_jars),
        ("own Java", check_own_java),
        ("Kafka", lambda: check_kafka(bootstrap_servers, kafka_options or {})),
    ]


def check_python() -> list[Finding]:
    """Only named: a Python that is too old never gets here, because set-up refuses it."""
    return [Finding("Python", State.GOOD, f"{sys.version.split()[0]} in {sys.prefix}")]


def check_java() -> list[Finding]:
    try:
        found = java.find(compiler=home.checkout() is not None)
    except LockstepError as error:
        return [Finding("Java", State.BROKEN, error.message, error.hint)]
    try:
        started = subprocess.run([found.java, "-version"], capture_output=True, text=True, timeout=30)
        problem = "" if started.returncode == 0 else (started.stderr.strip().splitlines() or ["it ended"])[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        todo = "reinstall this JDK, or set JAVA_HOME to another one"
        return [Finding("Java", State.BROKEN, f"{found.java} does not start: {problem}", todo)]
    kind = "JDK" if found.javac is not None else "runtime"
    return [Finding("Java", State.GOOD, f"{kind} {found.version} in {found.home}")]


def check_memory() -> list[Finding]:
    free = min(psutil.virtual_memory().available, _memory_left_in_group())
    found = f"{free / GIB:.1f} GiB free"
    if free < NEEDED_MEMORY:
        todo = f"free some: a broker and a Spark site need {NEEDED_MEMORY / GIB:.0f} GiB"
        return [Finding("memory", State.BROKEN, found, todo)]
    if free < WANTED_MEMORY:
        todo = f"free some before running two sites or the tests: they want {WANTED_MEMORY / GIB:.0f} GiB"
        return [Finding("memory", State.DOUBTFUL, found, todo)]
    return [Finding("memory", State.GOOD, found)]


def check_processors() -> list[Finding]:
    count = len(os.sched_getaffinity(0))
    if count < 2:
        return [
            Finding("processors", State.DOUBTFUL, f"{count}", "expect long latencies: give it two or more")
        ]
    return [Finding("processors", State.GOOD, f"{count}")]


def check_disk() -> list[Finding]:
    """Whether the folder that everything is kept in can be written, and how much room it has."""
    place = home.home()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as probe:
            probe.write(b"\0" * 65536)
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(place).free
    except OSError as error:
        found = f"cannot write to {place}: {(error.strerror or str(error)).lower()}"
        todo = "free or repair the disk, or set LOCKSTEP_HOME to a folder on another one"
        return [Finding("disk", State.BROKEN, found, todo)]
    found = f"{free / GIB:.1f} GiB free in {place}"
    todo = "free some, or set LOCKSTEP_HOME to a folder on another disk"
    if free < NEEDED_DISK:
        return [Finding("disk", State.BROKEN, found, todo)]
    if free < WANTED_DISK:
        return [Finding("disk", State.DOUBTFUL, found, todo)]
    return [Finding("disk", State.GOOD, found)]


def check_ports() -> list[Finding]:
    """Everything here talks over loopback on ports that the kernel picks."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2):
                pass
    except OSError as error:
        todo = "bring the loopback interface up (ip link set lo up) and allow connections on it"
        return [
            Finding("ports", State.BROKEN, f"no connection over 127.0.0.1: {error.strerror or error}", todo)
        ]
    findings = [Finding("ports", State.GOOD, f"127.0.0.1 accepts connections (tried port {port})")]
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        todo = f"Spark asks for it: add '127.0.1.1 {name}' to /etc/hosts, or set SPARK_LOCAL_IP=127.0.0.1"
        findings.append(Finding("host name", State.DOUBTFUL, f"{name} has no address", todo))
    return findings


def check_open_files() -> list[Finding]:
    import resource  # POSIX alone has it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < WANTED_FILES:
        todo = f"raise it before starting a broker: ulimit -n {WANTED_FILES} (the hard limit is {hard})"
        return [Finding("open files", State.DOUBTFUL, f"at most {soft}", todo)]
    return [
        Finding("open files", State.GOOD, "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}")
    ]


def check_jars() -> list[Finding]:
    """Reads every byte of every jar."""
    wanted = [name for name in jars.SETS if name in jars.DEFAULT_SETS or home.jars_folder(name).is_dir()]
    findings = []
    for name in wanted:
        problem = jars.verify(name)
        if problem:
            todo = f"run: {jars.setup_command(name)}"
            findings.append(Finding(f"{name} jars", State.BROKEN, problem, todo))
        else:
            count = len(jars.locked(name))
            findings.append(Finding(f"{name} jars", State.GOOD, f"{count} files, every checksum right"))
    return findings


def check_own_java() -> list[Finding]:
    try:
        problem = build.outdated()
    except LockstepError as error:
        return [Finding("own Java", State.BROKEN, error.message, error.hint)]
    if problem:
        return [Finding("own Java", State.BROKEN, problem, "run: lockstep setup")]
    compiled = Finding("own Java", State.GOOD, f"compiled: {build.JAR.name}")
    if not jars.missing("spark") and not jars.missing("kafka") and archive.outdated():
        slow = "not recorded for these jars and this Java: sites and brokers start more slowly"
        return [compiled, Finding("class archives", State.DOUBTFUL, slow, "run: lockstep setup")]
    return [compiled]


def check_kafka(bootstrap_servers: str | None, options: Mapping[str, str]) -> list[Finding]:
    if bootstrap_servers is None:
        found = "none named: commands start their own broker (--bootstrap-servers checks yours)"
        return [Finding("Kafka", State.GOOD, found)]
    from confluent_kafka import KafkaException  # only now: it takes a tenth of a second
    from confluent_kafka.admin import AdminClient

    errors: list[str] = []
    client = None
    try:
        client = AdminClient(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 0,
                "error_cb": lambda error: errors.append(error.str()),
                **options,
            }
        )
        answer = client.list_topics(timeout=KAFKA_SECONDS)
    except KafkaException as error:
        if client is not None:
            client.poll(0)  # hear what went wrong on the way
        reason = errors[0] if errors else error.args[0].str()
        todo = "check the address, that the broker runs, and the security options (--kafka-option)"
        return [Finding("Kafka", State.BROKEN, f"{bootstrap_servers} does not answer: {reason}", todo)]
    found = f"{bootstrap_servers}: {len(answer.brokers)} broker(s), {len(answer.topics)} topic(s)"
    return [Finding("Kafka", State.GOOD, found)]


def _memory_left_in_group() -> int:
    """A container's own limit, which the machine's figures do not show."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        return int(limit) - used if limit != "max" else sys.maxsize
    except (OSError, ValueError):
        return sys.maxsize
