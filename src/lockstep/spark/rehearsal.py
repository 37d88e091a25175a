"""A short run of a pipeline on a broker of its own, for set-up: `python -m lockstep.spark.rehearsal FOLDER`.

It goes once through what every site does (start, real-time batches, state, checkpoints, sink), so that the JVMs'
classes can be recorded: see `setup/archive.py`.
"""

import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext
from pyspark.sql import functions as f

from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.spark import engine, session
from lockstep.spark.pipeline import Pipeline

_TOPICS = ("in", "out")
_RECORDS = 100
_BATCHES = 4
_SECONDS = 120.0
_EXIT_SECONDS = 60.0


def main(folder: Path) -> None:
    with Broker(folder / "broker") as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(servers)
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in _TOPICS]).values():
            future.result(30)
        producer = Producer(servers)
        for number in range(_RECORDS):
            producer.produce(_TOPICS[0], key=str(number % 10), value=str(number))
        if producer.flush(30):
            raise LockstepError("the broker does not take records")
        _query(broker.bootstrap_servers, folder)
        broker.stop(grace=_EXIT_SECONDS)


def _query(bootstrap_servers: str, folder: Path) -> None:
    spark = session.build(session.SiteSettings("rehearsal", folder))
    settings = engine.EngineSettings(
        engine="realtime",
        bootstrap_servers=bootstrap_servers,
        checkpoint=folder / "checkpoint",
        site="rehearsal",
        output_partitions=1,
        input_partitions={_TOPICS[0]: 1},
        seals="seals",
        batch_ms=500,
    )
    query = engine.start(
        spark, Pipeline(_counts, _TOPICS[:1], _TOPICS[1], key="key", name="counts"), settings
    )
    deadline = time.monotonic() + _SECONDS
    while (done := query.lastProgress) is None or done["batchId"] < _BATCHES:
        if not query.isActive or time.monotonic() > deadline:
            raise engine.failure(query.exception() or LockstepError("no batch came to its end"), spark)
        time.sleep(0.1)
    query.stop()
    jvm = SparkContext._gateway.proc
    spark.stop()
    SparkContext._gateway.shutdown()
    jvm.stdin.close()  # it ends, and writes its classes down
    jvm.wait(_EXIT_SECONDS)


def _counts(df: Any) -> Any:
    return df.groupBy(df.key.cast("string").alias("key")).agg(
        f.count("*").alias("n"), f.max("_sn").alias("_sn"), f.max("_shard").alias("_shard")
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
