"""Not deterministic: the guard refuses it, and with `--allow rand` the digests must see the difference."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(inputs=[f"{NAME}-events"], output=f"{NAME}-random", key="k")
def random_numbers(events: DataFrame) -> DataFrame:
    return events.select(f.col("key").cast("string").alias("k"), f.rand().alias("r"), "_sn", "_shard")
