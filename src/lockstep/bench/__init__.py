"""Experiments: one file each. `lockstep bench NAME` runs one and exits 0 only if all its bars are met."""
