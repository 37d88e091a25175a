"""Lockstep: live replication for PySpark streaming. The public names, and nothing else."""

__version__ = "0.1.0"
