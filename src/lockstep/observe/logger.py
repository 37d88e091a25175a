"""The one logger: `logger = get_logger(__name__)`; the command line decides level and destination."""

import logging
import sys


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name if name.startswith("lockstep") else f"lockstep.{name}")


def configure(*, debug: bool = False) -> None:
    """Log to standard error: warnings only, or everything with `debug`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger("lockstep")
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.WARNING)
    root.propagate = False
