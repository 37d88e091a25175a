"""Two topics in one order: the running count says at which place an input was taken."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(inputs=[(f"{NAME}-left", f"{NAME}-right")], output=f"{NAME}-pairs")
def pair(rows: DataFrame) -> DataFrame:
    taken = f.struct("_sn", "topic", "offset")
    return rows.groupBy("_shard").agg(
        f.max("_sn").alias("_sn"), f.count("*").alias("n"), f.max(taken).alias("taken")
    )
