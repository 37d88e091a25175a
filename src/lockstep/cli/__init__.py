"""The command line: one file a command. A command's module is imported only when it is called.

Every module named in `COMMANDS` has a typer app called `app`; the command is its only function, or a group
if it has several. Errors that are written for people (`LockstepError`) are printed without a stack trace
unless `--debug` is given, and decide the exit code.
"""

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lockstep import __version__
from lockstep.errors import LockstepError
from lockstep.observe import logger

COMMANDS: dict[str, tuple[str, str]] = {
    "setup": ("lockstep.cli.setup", "Fetch the pinned jars and compile the Java source and sink."),
    "doctor": ("lockstep.cli.doctor", "Check this machine and say what to do about each finding."),
    "demo": ("lockstep.cli.demo", "See it work: a run with a process killed on the way, and a verdict."),
    "broker": ("lockstep.cli.broker", "Run the embedded Kafka broker (1 or 3 nodes) in the foreground."),
    "sim": ("lockstep.cli.sim", "Run a protocol in the simulator over many seeds, or replay one."),
    "bench": ("lockstep.cli.bench", "Run an experiment and compare it with what it must reach."),
}


class _LazyCommands(TyperGroup):
    """Knows every command's name and one-line help, and imports its module only when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, text = COMMANDS[cmd_name]
        if ctx.resilient_parsing or "--help" not in sys.argv[1:2]:
            command = typer.main.get_command(importlib.import_module(module).app)
            command.name = cmd_name
            return command
        return typer.main.get_command(_placeholder(cmd_name, text))


def _placeholder(name: str, text: str) -> typer.Typer:
    """Stands for a command in the list that `lockstep --help` prints, without importing it."""
    stand_in = typer.Typer(add_completion=False)

    @stand_in.command(name, help=text)
    def _never_called() -> None: ...

    return stand_in


app = typer.Typer(
    cls=_LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Live replication for PySpark streaming: a crash shows neither in the latency nor in the output.",
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Log everything; show stack traces.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit
    logger.configure(debug=debug)


def main() -> None:
    """The `lockstep` command."""
    debug = "--debug" in sys.argv or bool(os.environ.get("LOCKSTEP_DEBUG"))
    try:
        app()
    except LockstepError as error:
        if debug:
            raise
        typer.echo(f"lockstep: {error.message}", err=True)
        if error.hint:
            typer.echo(f"  {error.hint}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("lockstep: stopped", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
