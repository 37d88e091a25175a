"""Plain Spark, unreplicated: the same count per key with Spark's own Kafka source and sink, in Real-Time Mode.

It gets every setting that Lockstep's sites get (RocksDB, network buffer wait, memory): what differs is
replication alone. With `--as-it-comes` its shuffle keeps Spark's own waiting time, which decides its latency.
Started again on the same checkpoint it is the passive side of the comparison.

    python -m lockstep.bench.peers.plain_spark --bootstrap-servers ... --input in --output out \
        --checkpoint DIR --batch-ms 5000
"""

import argparse
import sys
from pathlib import Path
from subprocess import Popen

from lockstep import process

_AS_IT_COMES = {"spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "50"}
"""Spark's default."""


def start(
    bootstrap_servers: str, source: str, sink: str, folder: Path, batch_ms: int, *, as_it_comes: bool = False
) -> "Popen[bytes]":
    return process.launch(
        [
            sys.executable,
            "-m",
            "lockstep.bench.peers.plain_spark",
            f"--bootstrap-servers={bootstrap_servers}",
            f"--input={source}",
            f"--output={sink}",
            f"--checkpoint={folder / 'checkpoint'}",
            f"--batch-ms={batch_ms}",
            *(["--as-it-comes"] if as_it_comes else []),
        ],
        log=folder / "plain-spark.log",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap-servers", "input", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch-ms", type=int, required=True)
    parser.add_argument("--as-it-comes", action="store_true")
    arguments = parser.parse_args()
    query(arguments)


def query(arguments: argparse.Namespace) -> None:
    from lockstep.bench.count import counts
    from lockstep.spark import session

    folder = Path(arguments.checkpoint).parent
    conf = _AS_IT_COMES if arguments.as_it_comes else {}
    spark = session.build(session.SiteSettings(name="plain-spark", folder=folder, conf=conf))
    kafka = {"kafka.bootstrap.servers": arguments.bootstrap_servers}
    rows = (
        spark.readStream.format("kafka")
        .options(**kafka)
        .options(subscribe=arguments.input, startingOffsets="earliest")
    )
    (
        counts(rows.load().withColumnRenamed("offset", "_sn"))
        .drop("_sn")
        .writeStream.format("kafka")
        .options(**kafka)
        .option("topic", arguments.output)
        .option("checkpointLocation", arguments.checkpoint)
        .outputMode("update")
        .trigger(realTime=f"{arguments.batch_ms} milliseconds")
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
