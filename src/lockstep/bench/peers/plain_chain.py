"""Plain Spark: a chain of map tasks with Spark's own Kafka source and sink, a query for each, in Real-Time Mode.

    python -m lockstep.bench.peers.plain_chain --bootstrap-servers ... --topics in,between,out \
        --folder DIR --batch-ms 60000 --partitions 2
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from subprocess import Popen

from lockstep import process


def start(
    bootstrap_servers: str, topics: list[list[str]], folder: Path, batch_ms: int, partitions: int
) -> "Popen[bytes]":
    """`topics`: what the first task reads, what is between two tasks, what the last one writes."""
    folder.mkdir(parents=True, exist_ok=True)
    return process.launch(
        [
            sys.executable,
            *("-m", "lockstep.bench.peers.plain_chain"),
            f"--bootstrap-servers={bootstrap_servers}",
            f"--topics={'/'.join(','.join(one) for one in topics)}",
            f"--folder={folder}",
            f"--batch-ms={batch_ms}",
            f"--partitions={partitions}",
        ],
        log=folder / "plain-chain.log",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap-servers", "topics", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("batch-ms", "partitions"):
        parser.add_argument(f"--{name}", type=int, required=True)
    run(parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    from lockstep.bench.chain import passed_on
    from lockstep.spark import session

    topics = arguments.topics.split("/")
    folder = Path(arguments.folder)
    slots = max(4, (len(topics) - 1) * arguments.partitions + 2)
    spark = session.build(session.SiteSettings(name="plain-chain", folder=folder, slots=slots))
    kafka = {"kafka.bootstrap.servers": arguments.bootstrap_servers}
    for number, (source, sink) in enumerate(pairwise(topics), start=1):
        rows = spark.readStream.format("kafka").options(**kafka)
        (
            passed_on(rows.options(subscribe=source, startingOffsets="earliest").load())
            .writeStream.format("kafka")
            .options(**kafka)
            .option("topic", sink)
            .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
            .outputMode("update")
            .trigger(realTime=f"{arguments.batch_ms} milliseconds")
            .start()
        )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
