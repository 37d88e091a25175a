"""Alerts on customers who have spent much: ordinary PySpark, run as live replicas.

    lockstep run examples/payments/pipeline.py

Each payment is a JSON object with `customer` and `cents`. The function keeps `_sn` and `_shard`, the place of the
payment that caused a row: in an aggregation their maximum is that of the newest payment.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import lockstep

LIMIT_CENTS = 100_000


@lockstep.pipeline(inputs=["payments"], output="alerts", key="customer")
def alerts(payments: DataFrame) -> DataFrame:
    payment = F.from_json(F.col("value").cast("string"), "customer STRING, cents LONG")
    return (
        payments.select("_sn", "_shard", payment.alias("payment"))
        .select("_sn", "_shard", "payment.*")
        .groupBy("customer")
        .agg(
            F.max("_sn").alias("_sn"),
            F.max("_shard").alias("_shard"),
            F.count("*").alias("payments"),
            F.sum("cents").alias("spent_cents"),
        )
        .where(F.col("spent_cents") > LIMIT_CENTS)
    )
