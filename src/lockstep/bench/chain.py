"""The pipeline of the paper's micro-benchmarks: a chain of map tasks, each a query of its own.

A task passes `n,t,k` on as `n,t,k+1`; after the last of m tasks k is m, which is all the oracle there is to it.
"""

from itertools import pairwise

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PIPELINE = """\
import lockstep
from lockstep.bench.chain import passed_on

"""
STAGE = """\
task_{number} = lockstep.pipeline(
    inputs=[{input}], output="{output}", key="key", name="task-{number}"
)(passed_on)
"""


def passed_on(rows: DataFrame) -> DataFrame:
    """One task. The load's records end in dots: those count as 0."""
    fields = F.split(F.col("value").cast("string"), ",")
    done = F.coalesce(F.expr("try_cast(split(cast(value as string), ',')[2] as int)"), F.lit(0))
    value = F.concat_ws(",", fields[0], fields[1], (done + 1).cast("string"))
    kept = [column for column in ("_sn", "_shard") if column in rows.columns]
    return rows.select(F.col("key").cast("string").alias("key"), value.alias("value"), *kept)


def pipeline_file(topics: list[list[str]]) -> str:
    """A file with one stage between each two of these. Several topics, or all partitions of one, are merged."""
    lines = [PIPELINE]
    for number, (sources, sinks) in enumerate(pairwise(topics), start=1):
        merged = ", ".join(f'lockstep.broadcast("{source}")' for source in sources)
        lines.append(STAGE.format(number=number, input=f"({merged},)", output=sinks[0]))
    return "".join(lines)
