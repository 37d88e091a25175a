"""A pipeline that was typed into a notebook or a prompt, written to a file that sites can load.

Sites are processes of their own. So the function's text is written down together with what it refers to:
modules, what was imported from modules, constants, and other functions that were typed in. Nothing is
pickled: what cannot be written as text is refused by name.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from lockstep.errors import UsageError
from lockstep.spark.pipeline import Pipeline

_CONSTANTS = (str, bytes, int, float, bool, type(None))


def write_module(pipeline: Pipeline, path: Path) -> None:
    """Write `pipeline` and what it needs to `path`."""
    lines: dict[str, str] = {"lockstep": "import lockstep"}
    text = _source(pipeline.function)
    _collect(text, pipeline.function.__globals__, pipeline, lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines.values(), "", "", text]))


def _source(function: Callable[..., Any]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise UsageError(
            f"the text of {function.__name__} is not known, and sites are processes of their own",
            hint="write it to a file (%%writefile pipeline.py in a notebook) and run that",
        ) from error


def _collect(text: str, scope: dict[str, Any], pipeline: Pipeline, lines: dict[str, str]) -> None:
    names = sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)})
    for name in names:
        value = scope.get(name)
        if name in lines or name not in scope or isinstance(value, Pipeline):
            continue
        if isinstance(value, FunctionType) and value.__module__ == pipeline.function.__module__:
            lines[name] = ""  # seen: a function may call itself
            source = _source(value)
            _collect(source, value.__globals__, pipeline, lines)
            del lines[name]  # what it needs comes before it
            lines[name] = f"\n\n{source}"
        else:
            lines[name] = _statement(name, value)


def _statement(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if _is_constant(value):
        return f"{name} = {value!r}"
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if module and own and module != "__main__" and "." not in getattr(value, "__qualname__", own):
        return f"from {module} import {own} as {name}"
    raise UsageError(
        f"the pipeline uses {name}, a {type(value).__name__}, which cannot be written to a file",
        hint="make it a constant or a function, or put the pipeline into a file of its own",
    )


def _is_constant(value: Any) -> bool:
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_constant, value))
    if isinstance(value, dict):
        return all(_is_constant(key) and _is_constant(one) for key, one in value.items())
    return type(value) in _CONSTANTS
