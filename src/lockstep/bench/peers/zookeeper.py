"""ZooKeeper 3.9.5 beside ours: an ensemble of its servers from the jars that PySpark ships.

Same tick, same loopback, data on the same disk, its defaults otherwise (a forced write before each
acknowledgement, as ours). The four-letter words are allowed and the web console is off. Its quorum log at
level INFO, as every deployment has it, tells when a server looks, has decided and serves.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep import process
from lockstep.bench.coordination_sides import TICK_MS, Mark, Moment, Side
from lockstep.errors import LockstepError
from lockstep.ports import free_ports
from lockstep.setup import java
from lockstep.setup.ivy import pyspark_jars

VERSION = "3.9.5"
HEAP = "-Xmx1g"
_JARS = (
    f"zookeeper-{VERSION}",
    f"zookeeper-jute-{VERSION}",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "netty-*",
    "metrics-core-*",
    "snappy-java-*",
    "audience-annotations-*",
    "commons-io-*",
    "commons-cli-*",
)
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{UNIX_MILLIS} %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.quorum.name = org.apache.zookeeper.server.quorum
logger.quorum.level = info
"""
_MOMENTS: tuple[tuple[str, Moment], ...] = (
    ("QuorumPeer LOOKING", "looking"),
    ("QuorumPeer LEADING", "decided"),
    ("QuorumPeer FOLLOWING", "decided"),
    ("Peer state changed: leading - broadcast", "serving"),
    ("Peer state changed: following - broadcast", "following"),
)
_LINE = re.compile(r"(\d{13}) [A-Z]+ (.*)")


class ZooKeeper(Side):
    """`servers` processes of ZooKeeper. They die with this process."""

    def __init__(
        self, folder: Path, *, servers: int, name: str = "zookeeper", tick_ms: int = TICK_MS
    ) -> None:
        super().__init__(name, folder, servers=servers, tick_ms=tick_ms)
        self._election_ports = dict(zip(self.members, free_ports(servers), strict=True))
        self._java = str(java.find().java)
        self._classpath = ":".join(_jars())

    def start_server(self, server: int) -> None:
        home = self.folder / str(server)
        (home / "data").mkdir(parents=True, exist_ok=True)
        (home / "data" / "myid").write_text(f"{server}\n")
        (home / "zoo.cfg").write_text(self._configuration(server))
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        command = [self._java, HEAP, "-cp", self._classpath]
        command += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg")]
        self._processes[server] = process.launch(command, log=self._log(server))

    def marks(self, since: float) -> list[Mark]:
        """Its log has milliseconds of wall time."""
        ahead = time.time() - time.monotonic()
        found = []
        for server in self.members:
            lines = self._log(server).read_text(errors="replace").splitlines()
            found += [mark for mark in moments(lines, server, ahead) if mark.at >= since - 0.001]
        return sorted(found, key=lambda mark: mark.at)

    def _log(self, server: int) -> Path:
        return self.folder / f"server-{server}.log"

    def _configuration(self, server: int) -> str:
        lines = [
            f"tickTime={self.tick_ms}",
            "initLimit=40",
            "syncLimit=20",
            f"dataDir={self.folder / str(server) / 'data'}",
            f"clientPort={self.members[server].client_port}",
            "clientPortAddress=127.0.0.1",
            "4lw.commands.whitelist=*",
            "admin.enableServer=false",
            "maxClientCnxns=0",
        ]
        if len(self.members) > 1:
            lines += [
                f"server.{one}={member.host}:{member.peer_port}:{self._election_ports[one]}"
                for one, member in self.members.items()
            ]
        return "\n".join(lines) + "\n"


def moments(lines: Sequence[str], server: int, ahead: float) -> list[Mark]:
    """The changes of role in ZooKeeper's log; `ahead` is wall time minus `time.monotonic`."""
    found = []
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:
            continue
        for text, moment in _MOMENTS:
            if matched[2].strip() == text or (" " in text[10:] and text in matched[2]):
                found.append(Mark(int(matched[1]) / 1000 - ahead, server, moment))
    return found


def _jars() -> list[str]:
    folder = pyspark_jars()
    found = [str(jar) for pattern in _JARS for jar in sorted(folder.glob(f"{pattern}.jar"))]
    if not any(f"zookeeper-{VERSION}" in jar for jar in found):
        raise LockstepError(
            f"PySpark ships no ZooKeeper {VERSION} in {folder}",
            hint="this comparison is pinned to PySpark 4.3.0: run make setup",
        )
    return found
