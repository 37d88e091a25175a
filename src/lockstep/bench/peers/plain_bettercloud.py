"""Plain Spark on BetterCloud: the example's dataflow with Spark's own Kafka source and sink, in arrival order.

It gets every setting that Lockstep's sites get. What it has not is an order: events and control events meet as
they arrive, so `_sn` is only a name for an event, made of its timestamp and offset. In real time it runs up to the
Qualifier, in micro-batches all of it.

    python -m lockstep.bench.peers.plain_bettercloud --bootstrap-servers ... --events a --controls b --alerts out \
        --example examples/bettercloud --folder DIR --engine realtime --batch-ms 60000
"""

import argparse
import importlib
import os
import sys
from pathlib import Path
from subprocess import Popen

from lockstep import process


def start(
    bootstrap_servers: str,
    *,
    events: str,
    controls: str,
    alerts: str,
    example: Path,
    folder: Path,
    engine: str,
    batch_ms: int,
) -> "Popen[bytes]":
    command = [sys.executable, "-m", "lockstep.bench.peers.plain_bettercloud"]
    command += [f"--bootstrap-servers={bootstrap_servers}", f"--events={events}", f"--controls={controls}"]
    command += [f"--alerts={alerts}", f"--example={example}", f"--folder={folder}", f"--engine={engine}"]
    command += [f"--batch-ms={batch_ms}"]
    return process.launch(command, log=folder / "spark.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("bootstrap-servers", "events", "controls", "alerts"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--example", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--engine", choices=("realtime", "microbatch"), required=True)
    parser.add_argument("--batch-ms", type=int, required=True)
    query(parser.parse_args())


def query(arguments: argparse.Namespace) -> None:
    from pyspark.sql import functions as F

    from lockstep.spark import engine, session

    sys.path.insert(0, str(arguments.example))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(arguments.example), os.environ.get("PYTHONPATH")))
    )
    dataflow = importlib.import_module("dataflow")
    spark = session.build(
        session.SiteSettings(name="plain-bettercloud", folder=arguments.folder, conf=dataflow.ONE_REDUCER)
    )
    kafka = {"kafka.bootstrap.servers": arguments.bootstrap_servers}
    rows = (
        spark.readStream.format("kafka")
        .options(**kafka)
        .options(subscribe=f"{arguments.events},{arguments.controls}", startingOffsets="earliest")
        .load()
        .withColumn("_shard", F.lit(0))
        .withColumn("_sn", F.expr("unix_millis(timestamp) * 1048576 + offset % 1048576"))
    )
    if arguments.engine == "realtime":
        alerts = dataflow.qualified_events(rows, arguments.controls, as_they_arrive=True)
        trigger = {"realTime": f"{arguments.batch_ms} milliseconds"}
    else:
        alerts = importlib.import_module("batches").alerts_in_batches(rows, arguments.controls)
        trigger = {"processingTime": f"{arguments.batch_ms} milliseconds"}
    (
        engine.fit(alerts, "customerId", arguments.engine, 1)
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**kafka)
        .option("topic", arguments.alerts)
        .option("checkpointLocation", str(arguments.folder / "checkpoint"))
        .outputMode("update")
        .trigger(**trigger)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
