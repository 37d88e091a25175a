"""Plots of the benches. matplotlib is imported only when a plot is asked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def latency_cdf(samples_ms: Mapping[str, Sequence[float]], path: Path) -> Path:
    """Share of outputs that took longer than so many milliseconds; logarithmic, as the tail is the story."""
    axes, figure = _axes()
    for name, ordered in sorted(samples_ms.items()):
        share = [1 - rank / len(ordered) for rank in range(len(ordered))]
        axes.plot(ordered, share, label=name, linestyle="--" if name.startswith("plain") else "-")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of outputs that took longer")
    return _save(axes, figure, path)


def gap_dots(gaps_ms: Mapping[str, Sequence[float]], path: Path) -> Path:
    """Longest output gap after each kill, one row a side."""
    axes, figure = _axes()
    for row, (name, gaps) in enumerate(gaps_ms.items()):
        axes.plot(gaps, [row] * len(gaps), "o", alpha=0.6, label=name)
    axes.set_xscale("log")
    axes.set_yticks(range(len(gaps_ms)), list(gaps_ms))
    axes.set_xlabel("longest output gap in the 5 s after a kill (passive: until output returns), ms")
    return _save(axes, figure, path)


def fault_series(series: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """The 99th percentile per second around a kill at second 0, one line a kind of kill."""
    axes, figure = _axes()
    for name, one in series.items():
        seconds = [one["first_second"] + index for index in range(len(one["p99_ms"]))]
        axes.plot(seconds, [value or float("nan") for value in one["p99_ms"]], label=name)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("seconds since the kill")
    axes.set_ylabel("p99 of a second, ms")
    return _save(axes, figure, path)


def _axes() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    axes.grid(True, which="both", alpha=0.3)
    return axes, figure


def _save(axes: Any, figure: Any, path: Path) -> Path:
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    return path
