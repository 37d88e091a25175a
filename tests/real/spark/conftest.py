"""One Spark session for all tests here: a process has one JVM. Sites are queries with checkpoints of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_bench import Bench

from lockstep.spark import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    built = session.build(session.SiteSettings("tests", folder, slots=12))
    yield built
    jvm = SparkContext._gateway.proc
    built.stop()
    jvm.kill()  # its producers live on, and would complain about the broker after the last test
    jvm.wait()


@pytest.fixture
def bench(spark: SparkSession, bootstrap_servers: str, tmp_path: Path) -> Iterator[Bench]:
    one = Bench(spark, bootstrap_servers, tmp_path)
    yield one
    one.close()
