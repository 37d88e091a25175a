"""A Python UDF that raises on one record, and one that does not: Python gets rows in bundles."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@f.udf(StringType())
def doubled(text: str) -> str:
    return str(2 * int(text))


@f.udf(StringType())
def doubled_if_number(text: str) -> str:
    return str(2 * int(text)) if text.isdigit() else "?"


@lockstep.pipeline(inputs=[f"{NAME}-numbers"], output=f"{NAME}-strict")
def strict(numbers: DataFrame) -> DataFrame:
    return numbers.select(doubled(f.col("value").cast("string")).alias("value"))


@lockstep.pipeline(inputs=[f"{NAME}-numbers"], output=f"{NAME}-lenient")
def lenient(numbers: DataFrame) -> DataFrame:
    return numbers.select(doubled_if_number(f.col("value").cast("string")).alias("value"))
