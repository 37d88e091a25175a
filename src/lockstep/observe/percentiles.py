"""The one percentile function (nearest rank: every figure printed was really measured)."""

import math
from collections.abc import Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)


def percentile(values: Sequence[Number], percent: float) -> Number:
    """The smallest value that at least `percent` percent of `values` do not exceed."""
    return percentile_of_sorted(sorted(values), percent)


def percentile_of_sorted(ordered: Sequence[Number], percent: float) -> Number:
    if not ordered:
        raise ValueError("no values to take a percentile of")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile lies in 0..100, not {percent}")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[Number]) -> Number:
    return percentile(values, 50)


def quantiles(rounds: Sequence[Sequence[float]], points: int = 1000) -> list[float]:
    """All rounds together as about so many sorted values, the largest kept: enough for a plot."""
    ordered = sorted(value for one in rounds for value in one)
    step = max(1, len(ordered) // points)
    return [round(value, 2) for value in (*ordered[::step], ordered[-1])]
