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


def grouped_boxes(samples_ms: Mapping[str, Mapping[str, Sequence[float]]], varied: str, path: Path) -> Path:
    """The paper's kind of figure: a box from p25 to p75 with whiskers at p1 and p99, side by side."""
    axes, figure = _axes()
    values = sorted({value for one in samples_ms.values() for value in one}, key=int)
    width = 0.8 / len(samples_ms)
    for index, (name, by_value) in enumerate(samples_ms.items()):
        places = [values.index(value) + (index - (len(samples_ms) - 1) / 2) * width for value in by_value]
        boxes = axes.boxplot(
            list(by_value.values()),
            positions=places,
            widths=width * 0.85,
            whis=(1, 99),
            showfliers=False,
            patch_artist=True,
            label=name,
        )
        for box in boxes["boxes"]:
            box.set_facecolor(f"C{index}")
            box.set_alpha(0.6)
    axes.set_xticks(range(len(values)), values)
    axes.set_xlabel(varied)
    axes.set_ylabel("latency, ms")
    axes.set_yscale("log")
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
