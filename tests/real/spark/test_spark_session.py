"""The JVM of a site, as `session.build` starts it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def test_a_sites_jvm_maps_the_archive_that_set_up_recorded(spark: SparkSession) -> None:
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert "/archives/spark-" in Path(f"/proc/{pid}/maps").read_text()


def test_temporary_files_stay_in_the_sites_folder(spark: SparkSession) -> None:
    temporary = Path(spark.sparkContext._jvm.java.lang.System.getProperty("java.io.tmpdir"))
    assert temporary == Path(spark.conf.get("spark.local.dir")).parent / "tmp"
