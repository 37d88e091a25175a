"""Sites, their supervision, deduplication and egress: replicas of a dataflow over one order."""
