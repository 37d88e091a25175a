"""Progress of what takes longer than two seconds: a bar on a terminal, a line now and then elsewhere."""

import time
from typing import Self

from rich import progress as bars
from rich.console import Console

LINE_SECONDS = 10.0


class Progress:
    """So many of `total` are done. What is printed to its console meanwhile stands above the bar."""

    def __init__(self, what: str, total: float, console: Console) -> None:
        self._what = what
        self._total = total
        self._done = 0.0
        self._console = console
        self._said_at = time.monotonic()
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[note]}"),
            bars.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task(what, total=total, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def advance(self, count: float = 1) -> None:
        self.update(self._done + count)

    def update(self, done: float, note: str = "") -> None:
        self._done = done
        self._bars.update(self._task, completed=done, note=note)
        if not self._console.is_terminal and time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said_at = time.monotonic()
            line = f"{self._what}: {done:,.0f} of {self._total:,.0f}" + (f", {note}" if note else "")
            self._console.print(line, highlight=False)
