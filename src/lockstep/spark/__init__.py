"""Spark's side of Lockstep: session, source and sink, engines, the determinism guard."""
