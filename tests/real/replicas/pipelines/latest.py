"""Raises on one record behind a shuffle, where the record is not in the hands of who reads it."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(inputs=[f"{NAME}-numbers"], output=f"{NAME}-latest", key="key")
def latest(numbers: DataFrame) -> DataFrame:
    text = f.col("value").cast("string")
    last = numbers.groupBy("key").agg(
        f.max_by(text, "_sn").alias("text"), f.max("_sn").alias("_sn"), f.max("_shard").alias("_shard")
    )
    return last.select("key", (f.col("text").cast("int") * 2).cast("string").alias("value"), "_sn", "_shard")
