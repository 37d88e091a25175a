"""Counts per key: stateful, so that a site that lost or repeated an input would show it in every later output."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(inputs=[f"{NAME}-events"], output=f"{NAME}-counts", key="k")
def counts(events: DataFrame) -> DataFrame:
    keyed = events.select(f.col("key").cast("string").alias("k"), "_sn", "_shard")
    return keyed.groupBy("k").agg(
        f.count("*").alias("n"), f.max("_sn").alias("_sn"), f.max("_shard").alias("_shard")
    )
