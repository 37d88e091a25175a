"""An ordinary Spark query on top of a run: reads its clean topic and keeps every output once, with `foreachBatch`.

    lockstep run pipeline.py --clean alerts-clean --bootstrap-servers HOST:PORT
    python foreach_batch.py HOST:PORT alerts-clean /data/alerts

It knows nothing of sites. Whatever dies, the run's sites or this query itself, the folder ends up with each output
once: the egress wrote it once, Spark's checkpoint says which offsets belong to a batch, and a batch that Spark
runs again replaces what it left behind.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession

from lockstep.setup import jars

servers, topic, folder = sys.argv[1:4]

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars.classpath("spark"))))
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
outputs = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)


def keep(batch: DataFrame, number: int) -> None:
    """Replace, never append: Spark may run a batch twice, with the same number and the same rows."""
    rows = batch.selectExpr("cast(key as string) key", "cast(value as string) value", "partition", "offset")
    rows.write.mode("overwrite").json(f"{folder}/outputs/batch={number}")


query = outputs.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint").start()
query.awaitTermination()
