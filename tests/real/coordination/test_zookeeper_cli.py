"""ZooKeeper's own command line (from PySpark's jars), unchanged, on our ensemble."""

import subprocess
from pathlib import Path

import pyspark
import pytest

from lockstep.coordination.ensemble import Ensemble
from lockstep.setup import java

pytestmark = pytest.mark.real
JARS = Path(pyspark.__file__).parent / "jars" / "*"


def test_the_command_line_of_zookeeper_works(ensemble: Ensemble) -> None:
    commands = [
        "create /x hello",
        "get /x",
        "create -e -s /x/e- data",
        "ls /x",
        "create -c /box",
        "create -t 60000 /brief soon",
        "addauth digest bob:secret",
        "whoami",
        "setAcl /x auth::cdrwa",
        "getAcl /x",
        "setquota -n 5 /x",
        "listquota /x",
        "getAllChildrenNumber /",
        "getEphemerals",
        "sync /",
        "config",
        "addWatch /x",
        "set /x again",
        "removewatches /x",
        "deleteall /x",
        "get /x",
        "quit",
    ]
    done = subprocess.run(
        [
            str(java.find().java),
            "-cp",
            str(JARS),
            "org.apache.zookeeper.ZooKeeperMain",
            "-server",
            ensemble.connect_string,
        ],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    shown = done.stdout + done.stderr
    for expected in (
        "hello",
        "Created /x/e-0000000000",
        "[e-0000000000]",
        "Created /box",
        "Created /brief",
        "digest: bob",
        "'digest,'bob:",
        "Output stat for /x count=2",
        "[/x/e-0000000000]",
        "Sync is OK",
        "server.1=127.0.0.1",
        "type:NodeDataChanged path:/x",
        "Node does not exist: /x",
    ):
        assert expected in shown, f"{expected!r} is missing in:\n{shown}"
