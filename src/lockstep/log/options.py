"""Kafka options for a process that is started by another one: through a file, since all can see a command line."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError


def write_options(file: Path, options: Mapping[str, Any]) -> Path:
    """Write librdkafka options to a file that only its owner can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(dict(options), out)
    temporary.replace(file)
    return file


def read_options(file: str) -> dict[str, Any]:
    """For `argparse`: the options in this file."""
    try:
        options = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read Kafka options from {file}: {error}") from error
    if not isinstance(options, dict):
        raise UsageError(f"{file} holds no Kafka options", hint="a JSON object of librdkafka's names")
    return options
