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
    """Per second around a kill at second 0, one line a kind of kill: 99th percentile, processor, network."""
    panels = {"p99_ms": "p99 of a second, ms", "cores": "busy cores", "loopback_mb_per_s": "loopback, MB/s"}
    first, figure = _axes(len(panels))
    for axes, (figure_name, text) in zip(figure.axes, panels.items(), strict=True):
        for name, one in series.items():
            values = one[figure_name][: len(one["p99_ms"])]
            seconds = [one["first_second"] + index for index in range(len(values))]
            axes.plot(seconds, [float("nan") if value is None else value for value in values], label=name)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_ylabel(text)
    first.set_yscale("log")
    first.set_yticks([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000])
    first.yaxis.set_major_formatter("{x:g}")
    first.yaxis.set_minor_formatter("")
    first.autoscale(axis="y")
    figure.axes[-1].set_xlabel("seconds since the kill")
    return _save(first, figure, path)


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


def _axes(rows: int = 1) -> tuple[Any, Any]:
    """The first axes, and the figure with those below them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, _ = pyplot.subplots(rows, sharex=True, figsize=(9, 4 + rows), layout="constrained")
    for axes in figure.axes:
        axes.grid(True, which="both", alpha=0.3)
    return figure.axes[0], figure


def _save(axes: Any, figure: Any, path: Path) -> Path:
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    return path
