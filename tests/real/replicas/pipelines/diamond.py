"""Two branches that are merged again: the last stage reads two stage topics in one order."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(inputs=[f"{NAME}-left"], output=f"{NAME}-lefts")
def lefts(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value", "_sn", "_shard")


@lockstep.pipeline(inputs=[f"{NAME}-right"], output=f"{NAME}-rights")
def rights(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value", "_sn", "_shard")


@lockstep.pipeline(inputs=[(f"{NAME}-lefts", f"{NAME}-rights")], output=f"{NAME}-pairs")
def pair(rows: DataFrame) -> DataFrame:
    taken = f.struct("_sn", "topic", "offset")
    return rows.groupBy("_shard").agg(
        f.max("_sn").alias("_sn"), f.count("*").alias("n"), f.max(taken).alias("taken")
    )
