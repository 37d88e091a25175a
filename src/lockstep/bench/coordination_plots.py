"""The plots of the coordination benches: recovery by phase (the paper's figure 8), Kafka on top (12 to 15)."""

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


def worst_by_tick(ticks: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """The paper's figure 14: a dot a run."""
    figure, axis = _panel()
    for tick, one in ticks.items():
        axis.plot([int(tick)] * one["count"], one["samples"], "o", alpha=0.6)
    axis.set_xlabel("tick, ms (a broker's session is two)")
    axis.set_ylabel("longest message latency, ms")
    return _saved(figure, "the leading broker dies", path)


def worst_cdf(sides: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """The paper's figures 12, 13 and 15: distributions by side and client."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "reconnection": "a broker is connected again",
        "topic_with_kill": "a topic is created, with a kill",
        "both_die": "longest message latency, both die",
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(15, 4.5), sharey=True, layout="constrained")
    for (name, text), axis in zip(panels.items(), axes, strict=True):
        for side, clients in sides.items():
            for client, one in clients.items():
                ordered = sorted(one[name].get("samples", ()))
                shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
                style = "--" if client == "patient" else "-"
                axis.step(ordered, shares, where="post", label=f"{side}, {client}", linestyle=style)
        axis.set_xlabel(f"{text}, ms")
        axis.grid(True, alpha=0.3)
    axes[0].set_ylabel("share of rounds")
    axes[0].legend(fontsize=8)
    return _saved(figure, "Kafka on the ensemble", path)


def _panel() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axis.grid(True, alpha=0.3)
    return figure, axis


def _saved(figure: Any, title: str, path: Path) -> Path:
    from matplotlib import pyplot

    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
