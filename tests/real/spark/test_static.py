"""A pipeline is ordinary PySpark: it runs on static DataFrames in a unit test."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.errors import UsageError
from lockstep.spark import engine
from lockstep.spark.pipeline import pipeline

pytestmark = pytest.mark.real


@pipeline(inputs=["payments"], output="alerts", key="customer")
def large(payments: Any) -> Any:
    parsed = payments.select(
        F.from_json(payments.value.cast("string"), "customer string, amount int").alias("p"), "_sn"
    )
    return parsed.select("p.*", "_sn").filter("amount > 100")


@pytest.fixture(scope="module")
def payments(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("ann", 5), ("bob", 500), ("cy", 101)], "customer string, amount int")


def test_missing_columns_of_the_source_are_added(payments: DataFrame) -> None:
    rows = large.on_static(payments=payments).collect()
    assert [(row.customer, row.amount, row._sn) for row in rows] == [("bob", 500, 1), ("cy", 101, 2)]


def test_columns_that_are_given_are_kept(spark: SparkSession) -> None:
    given = spark.createDataFrame([(b"k", 40, 3)], "key binary, offset long, partition int")

    @pipeline(inputs=["t"], output="o")
    def same(df: Any) -> Any:
        return df

    [row] = same.on_static({"t": given}).collect()
    assert (bytes(row.key), row.offset, row._sn, row.partition, row.topic, row.headers) == (
        b"k",
        40,
        40,
        3,
        "t",
        None,
    )


def test_output_columns_become_a_json_value_and_the_key(payments: DataFrame) -> None:
    fitted = engine.fit(large.on_static(payments=payments), "customer", "realtime", 1)
    assert [(bytes(row.key), bytes(row.value), row._sn, row._shard) for row in fitted.collect()] == [
        (b"bob", b'{"customer":"bob","amount":500}', 1, 0),
        (b"cy", b'{"customer":"cy","amount":101}', 2, 0),
    ]


def test_a_value_column_is_written_as_it_is(payments: DataFrame) -> None:
    plain = payments.select(
        F.col("customer").alias("key"), F.col("amount").alias("value"), F.lit(1).alias("_sn")
    )
    row = engine.fit(plain, None, "microbatch", 1).first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value)) == (b"ann", b"5")


def test_a_declared_key_has_to_be_in_the_output(payments: DataFrame) -> None:
    with pytest.raises(UsageError, match="no column 'account'"):
        engine.fit(payments, "account", "microbatch", 1)
