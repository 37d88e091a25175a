"""A trace that a person can read: one line an event, aligned, with times and node names.

Events are kept as they are and turned into text only when someone asks, so that tracing is cheap.
The text depends on nothing but the run: sets are shown sorted, no object identities, no wall clock.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from msgspec import Struct

LINE_WIDTH = 180


class Event(Struct, frozen=True):
    at: int
    node: str
    verb: str
    detail: tuple[Any, ...]


class Trace:
    """Everything that happened in one run, bounded."""

    def __init__(self, limit: int = 500_000) -> None:
        self._limit = limit
        self.events: list[Event] = []
        self.left_out = 0

    def add(self, at: int, node: str, verb: str, *detail: Any) -> None:
        if len(self.events) >= self._limit:
            del self.events[: self._limit // 2]
            self.left_out += self._limit // 2
        self.events.append(Event(at, node, verb, detail))

    def lines(self, *, until: int | None = None, last: int | None = None) -> list[str]:
        """The events as text; `until` a time, and of those only the `last` ones."""
        chosen: Iterable[Event] = self.events
        if until is not None:
            chosen = [event for event in self.events if event.at <= until]
        picked = list(chosen)
        skipped = self.left_out
        if last is not None and len(picked) > last:
            skipped += len(picked) - last
            picked = picked[-last:]
        width = max((len(event.node) for event in picked), default=0)
        lines = [f"... {skipped} earlier events not shown"] if skipped else []
        lines.extend(_line(event, width) for event in picked)
        return lines


def show(value: Any) -> str:
    """`value` as text that is the same in every process."""
    match value:
        case str():
            return value
        case bool() | int() | float() | None:
            return str(value)
        case bytes():
            return repr(value)
        case Struct():
            return f"{type(value).__name__}({', '.join(_fields(value))})"
        case Mapping():
            return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
        case set() | frozenset():
            return "{" + ", ".join(sorted(show(item) for item in value)) + "}"
        case tuple():
            return "(" + ", ".join(show(item) for item in value) + ")"
        case list():
            return "[" + ", ".join(show(item) for item in value) + "]"
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case _ if is_dataclass(value) and not isinstance(value, type):
            parts = ", ".join(f"{field.name}={show(getattr(value, field.name))}" for field in fields(value))
            return f"{type(value).__name__}({parts})"
        case _:
            return type(value).__name__


def _fields(value: Struct) -> Iterator[str]:
    """Fields that say something: those at their default are left out."""
    names, defaults = value.__struct_fields__, value.__struct_defaults__
    required = len(names) - len(defaults)
    for number, name in enumerate(names):
        item = getattr(value, name)
        if number < required or item != defaults[number - required]:
            yield f"{name}={show(item)}"


def _line(event: Event, width: int) -> str:
    text = " ".join(show(part) for part in event.detail)
    line = f"{event.at / 1_000_000:11.6f}  {event.node:<{width}}  {event.verb:<10} {text}".rstrip()
    return line if len(line) <= LINE_WIDTH else line[: LINE_WIDTH - 3] + "..."
