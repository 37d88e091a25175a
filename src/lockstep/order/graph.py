"""The graph of a pipeline's stages: which reads what another one writes. Cycles are refused.

Both orders need it acyclic (the paper's model is a directed acyclic graph, section II). In a cycle a heartbeat
would wait for itself: a stage goes on when every input has shown it, and one of its inputs shows it only after
the stage has gone on. And the position of a stage would depend on outputs that it has yet to write, so that no
checkpoint of it could ever be taken up again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from lockstep.errors import UsageError


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline: the topics that it reads and writes."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def check_acyclic(stages: Sequence[Stage]) -> list[Stage]:
    """The stages in an order in which every one comes after those it reads from; raises for a cycle."""
    by_name: dict[str, Stage] = {}
    writers: dict[str, list[str]] = {}
    for stage in stages:
        if stage.name in by_name:
            raise UsageError(
                f"two stages are called {stage.name!r}", hint="give each stage a name of its own"
            )
        by_name[stage.name] = stage
        for topic in stage.outputs:
            writers.setdefault(topic, []).append(stage.name)
    needs = {
        stage.name: [writer for topic in stage.inputs for writer in writers.get(topic, ())]
        for stage in stages
    }
    try:
        return [by_name[name] for name in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        raise UsageError(
            f"the stages form a cycle: {_explain(by_name, error.args[1])}",
            hint="a replicated pipeline cannot wait for its own output: let one of these stages write to a topic "
            "that none of them reads, and read that topic in a run of its own",
        ) from None


def _explain(by_name: dict[str, Stage], cycle: Sequence[str]) -> str:
    steps = []
    for writer, reader in pairwise(cycle):
        shared = next(topic for topic in by_name[writer].outputs if topic in by_name[reader].inputs)
        steps.append(f"{writer} writes {shared}, which {reader} reads")
    return "; ".join(steps)
