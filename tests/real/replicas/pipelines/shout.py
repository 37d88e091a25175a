"""A Python UDF: not in real time, so `auto` takes the micro-batch engine."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@f.udf(StringType())
def louder(text: str) -> str:
    return text.upper()


@lockstep.pipeline(inputs=[f"{NAME}-whispers"], output=f"{NAME}-shouts")
def shout(whispers: DataFrame) -> DataFrame:
    return whispers.select("key", louder(f.col("value").cast("string")).alias("value"))
