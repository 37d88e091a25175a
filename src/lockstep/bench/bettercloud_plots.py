"""The plot of `lockstep bench bettercloud`, as the paper's Fig. 16. matplotlib is imported only to draw it."""

from collections.abc import Mapping
from pathlib import Path


def p99_around_the_kill(series_ms: Mapping[str, Mapping[str, float]], slo_ms: float, path: Path) -> Path:
    """p99 of each second by configuration, logarithmic; a second without alerts leaves a hole in its line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for name, series in series_ms.items():
        seconds = sorted(int(second) for second in series)
        whole = range(seconds[0], seconds[-1] + 1) if seconds else range(0)
        axes.plot(whole, [series.get(str(second), float("nan")) for second in whole], label=name, marker=".")
    axes.axvline(0, color="red", linewidth=1)
    axes.axhline(slo_ms, color="gray", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("seconds after the kill")
    axes.set_ylabel("p99 of the second, ms")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
