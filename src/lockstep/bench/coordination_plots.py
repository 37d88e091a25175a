"""The coordination bench's plot: distribution of the recovery time, whole and by phase (the paper's figure 8)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.bench.coordination_kills import PHASES


def recovery_cdf(sides: Mapping[str, Mapping[str, Any]], title: str, path: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = ("kill until a write is acknowledged", *PHASES[:3])
    figure, axes = pyplot.subplots(1, len(panels), figsize=(16, 4.5), sharey=True, layout="constrained")
    for panel, axis in zip(panels, axes, strict=True):
        for name, side in sides.items():
            samples = side["phase_samples"][panel] if panel in PHASES else side["samples"]
            ordered = sorted(samples)
            shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
            axis.step(
                ordered, shares, where="post", label=name, linestyle="--" if name == "zookeeper" else "-"
            )
        axis.set_xscale("log")
        axis.set_xlabel(f"{panel}, ms")
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("share of kills")
    axes[0].legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
