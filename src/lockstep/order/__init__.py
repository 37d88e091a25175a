"""One input order for all replicas: by heartbeats and a deterministic merge (LiveRobin) or a leader (KaZoo)."""
