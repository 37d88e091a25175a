"""Raises on a record that is not a number: poison."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(inputs=[f"{NAME}-numbers"], output=f"{NAME}-doubled")
def doubled(records: DataFrame) -> DataFrame:
    number = f.col("value").cast("string").cast("int")
    return records.select((number * 2).cast("string").alias("value"), "_sn", "_shard")
