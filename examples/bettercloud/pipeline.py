"""BetterCloud: alerts on events of customers, by rules that change while they run (see docs/bettercloud.md).

    lockstep run examples/bettercloud/pipeline.py

Two stages in the real-time engine: the joins and the Qualifier, then the Counter. `microbatch.py` declares the
same application for the micro-batch engine.

Events are partitioned by customer; control events are few, so every shard sees all of them. Both topics are merged
into one order, the same on every site: whether an event met a rule is decided by that order, not by luck.
"""

from dataflow import ONE_REDUCER, counted_alerts, qualified_events
from pyspark.sql import DataFrame

import lockstep


@lockstep.pipeline(
    inputs=[("customer-events", lockstep.broadcast("control-events"))],
    output="qualified-events",
    key="customerId",
    options=ONE_REDUCER,
)
def qualified(merged: DataFrame) -> DataFrame:
    return qualified_events(merged)


@lockstep.pipeline(inputs=["qualified-events"], output="alerts", key="customerId", options=ONE_REDUCER)
def alerts(qualified: DataFrame) -> DataFrame:
    return counted_alerts(qualified)
