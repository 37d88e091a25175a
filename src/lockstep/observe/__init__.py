"""What Lockstep shows of itself: logger, percentiles, metrics, dashboard."""
