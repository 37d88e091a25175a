"""BetterCloud for the micro-batch engine: the application of `pipeline.py` in one stage.

lockstep run examples/bettercloud/microbatch.py
"""

from batches import alerts_in_batches
from dataflow import ONE_REDUCER
from pyspark.sql import DataFrame

import lockstep


@lockstep.pipeline(
    inputs=[("customer-events", lockstep.broadcast("control-events"))],
    output="alerts",
    key="customerId",
    options={"outputMode": "update", **ONE_REDUCER},
)
def alerts(merged: DataFrame) -> DataFrame:
    return alerts_in_batches(merged)
