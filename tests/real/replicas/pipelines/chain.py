"""Two stages: events are tagged with the rule that is in force in their shard's order, then counted by colour.

The first stage merges a topic with a broadcast one, so what it says depends on the agreed order. The second one
has another key and reads what all sites wrote.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import lockstep

NAME = os.environ.get("LOCKSTEP_TEST_PREFIX", "test")


@lockstep.pipeline(
    inputs=[(f"{NAME}-marbles", lockstep.broadcast(f"{NAME}-rules"))], output=f"{NAME}-tagged", key="colour"
)
def tagged(rows: DataFrame) -> DataFrame:
    text = f.col("value").cast("string")
    is_rule = f.col("topic").endswith("-rules")
    state = rows.groupBy("_shard").agg(
        f.max("_sn").alias("_sn"),
        f.count("*").alias("n"),
        f.max_by(f.struct(f.when(~is_rule, text).alias("colour")), "_sn").alias("last"),
        f.max(f.when(is_rule, f.struct("_sn", text.alias("rule")))).alias("newest"),
    )
    return state.where("last.colour is not null").select(
        "_sn", "_shard", f.col("last.colour").alias("colour"), "n", f.col("newest.rule").alias("rule")
    )


@lockstep.pipeline(inputs=[f"{NAME}-tagged"], output=f"{NAME}-colours", key="colour")
def colours(rows: DataFrame) -> DataFrame:
    keyed = rows.select(f.col("key").cast("string").alias("colour"), "value", "_sn", "_shard")
    return keyed.groupBy("colour").agg(
        f.max("_sn").alias("_sn"),
        f.max("_shard").alias("_shard"),
        f.count("*").alias("n"),
        f.max_by(f.col("value").cast("string"), "_sn").alias("tagged"),
    )
