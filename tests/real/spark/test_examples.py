"""The examples do what they say, on static DataFrames."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockstep.spark.pipeline import load

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_payments_alerts_on_those_who_have_spent_much(spark: SparkSession) -> None:
    alerts = load(EXAMPLES / "payments" / "pipeline.py")
    payments = spark.createDataFrame(
        [("ann", 60_000), ("bob", 99_999), ("ann", 40_001)], "customer string, cents long"
    )
    rows = alerts.on_static(payments=payments).collect()
    assert [(row.customer, row.payments, row.spent_cents, row._sn) for row in rows] == [
        ("ann", 2, 100_001, 2)
    ]
