"""Lockstep: live replication for PySpark streaming. The public names, and nothing else."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.replicas.consumer import Consumer
    from lockstep.replicas.job import run
    from lockstep.spark.inputs import broadcast
    from lockstep.spark.pipeline import Pipeline, pipeline

__version__ = "0.1.0"

_HOMES = {
    "Consumer": "lockstep.replicas.consumer",
    "Pipeline": "lockstep.spark.pipeline",
    "broadcast": "lockstep.spark.inputs",
    "pipeline": "lockstep.spark.pipeline",
    "run": "lockstep.replicas.job",
}
__all__ = ["Consumer", "Pipeline", "__version__", "broadcast", "pipeline", "run"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `import lockstep` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"lockstep has no {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
