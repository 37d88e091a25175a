"""The pipeline of the latency and fail-over benches: a running count per key, 100 keys."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def counts(rows: DataFrame) -> DataFrame:
    """`n,t,...` records to rows `n,t,count` per key; plain Spark and Lockstep run exactly this."""
    fields = F.split(F.col("value").cast("string"), ",")
    return (
        rows.select(
            "_sn",
            F.col("key").cast("string").alias("key"),
            F.struct(fields[0].cast("long").alias("n"), fields[1].cast("long").alias("t")).alias("cause"),
        )
        .groupBy("key")
        .agg(F.max("_sn").alias("_sn"), F.max("cause").alias("cause"), F.count("*").alias("count"))
        .select(
            "key", "_sn", F.concat_ws(",", F.col("cause.n"), F.col("cause.t"), F.col("count")).alias("value")
        )
    )
