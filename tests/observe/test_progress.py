"""Progress is seen on a terminal and off it."""

import io
import re

import pytest
from rich.console import Console

from lockstep.observe import progress
from lockstep.observe.progress import Progress


def test_off_a_terminal_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with Progress("seeds", 2000, Console(file=out)) as seeds:
        seeds.advance()
        assert out.getvalue() == ""
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        seeds.update(1000, "7 events/s")
        seeds.advance(500)
    assert out.getvalue().splitlines() == ["seeds: 1,000 of 2,000, 7 events/s", "seeds: 1,500 of 2,000"]


def test_on_a_terminal_there_is_a_bar() -> None:
    out = io.StringIO()
    with Progress("seeds", 2000, Console(file=out, force_terminal=True, width=100)) as seeds:
        seeds.update(500, "7 events/s")
    assert re.search(r"500\S*/2000.*7 events/s", out.getvalue())
