"""What the processes that make an order have in common: how they are started, and how they end."""

import argparse
import sys
from collections.abc import Awaitable, Callable

import uvloop

from lockstep.errors import LockstepError
from lockstep.log.kafka import KafkaLog
from lockstep.log.options import read_options
from lockstep.observe.logger import configure, get_logger

logger = get_logger(__name__)


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that all of them take."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument(
        "--options", type=read_options, default={}, help="a file with librdkafka options as JSON"
    )
    return made


def run(arguments: argparse.Namespace, work: Callable[[KafkaLog], Awaitable[None]]) -> None:
    """Do the work on the log that the arguments name; an error that is ours ends the process with its code."""

    async def on_the_log() -> None:
        async with KafkaLog(arguments.bootstrap_servers, options=arguments.options, linger_ms=0) as log:
            await work(log)

    configure()
    try:
        uvloop.run(on_the_log())
    except LockstepError as error:
        logger.error("%s", error)
        sys.exit(error.exit_code)
