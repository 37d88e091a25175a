"""The command line: one file a command. A command's module is imported only when it is called.

Every module named in `COMMANDS` has a typer app called `app`; the command is its only function, or a group
if it has several. Errors that are written for people (`LockstepError`) are printed without a stack trace
unless `--debug` is given, and decide the exit code.
"""

import errno
import importlib
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lockstep import __version__
from lockstep.errors import LockstepError
from lockstep.observe import logger

COMMANDS: dict[str, tuple[str, str]] = {
    "setup": ("lockstep.cli.setup", "Fetch the pinned jars and compile the Java source and sink."),
    "doctor": ("lockstep.cli.doctor", "Check this machine and say what to do about each finding."),
    "demo": ("lockstep.cli.demo", "See it work: a run with a process killed on the way, and a verdict."),
    "run": ("lockstep.cli.run", "Run a pipeline as live replicas: a killed site is not noticed."),
    "stop": ("lockstep.cli.stop", "End a run that outlived its supervisor."),
    "state": ("lockstep.cli.state", "Compare what the sites of a run keep, row by row."),
    "broker": ("lockstep.cli.broker", "Run the embedded Kafka broker (1 or 3 nodes) in the foreground."),
    "coord": ("lockstep.cli.coord", "Run, watch and use the coordination service (speaks ZooKeeper)."),
    "sim": ("lockstep.cli.sim", "Run a protocol in the simulator over many seeds, or replay one."),
    "bench": ("lockstep.cli.bench", "Run an experiment and compare it with what it must reach."),
}

_MISTAKE: Any = typer.BadParameter.__bases__[0]
"""The usage error of the click that typer carries inside itself."""
_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EIO}


class _LazyCommands(TyperGroup):
    """Knows every command's name and one-line help, and imports a command's module only when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return typer.main.get_command(_placeholder(cmd_name, COMMANDS[cmd_name][1]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
            command.name = name
        return name, command, rest


def _placeholder(name: str, text: str) -> typer.Typer:
    """Stands for a command in the list that `lockstep --help` prints, without importing it."""
    stand_in = typer.Typer(add_completion=False)

    @stand_in.command(name, help=text)
    def _never_called() -> None: ...

    return stand_in


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit


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
    debug: Annotated[
        bool, typer.Option("--debug", help="Log everything; show stack traces. Works after the command too.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    logger.configure(debug=debug)


def main() -> None:
    """The `lockstep` command."""
    own, separator, passed_on = _split(sys.argv[1:])
    debug = "--debug" in own or bool(os.environ.get("LOCKSTEP_DEBUG"))
    words = ["--debug"] * debug + [word for word in own if word != "--debug"] + separator + passed_on
    try:
        if words in ([], ["--debug"]):
            words = ["--help"]
        answer = app(args=words, prog_name="lockstep", standalone_mode=False)
        code = answer if isinstance(answer, int) else 0
        sys.stdout.flush()
    except _MISTAKE as error:
        path = error.ctx.command_path if error.ctx is not None else "lockstep"
        code = _report(error, error.format_message(), f"see: {path} --help", 2, debug)
    except LockstepError as error:
        code = _report(error, error.message, error.hint, error.exit_code, debug)
    except OSError as error:
        if error.errno not in _DISK_TROUBLE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        hint = "free or repair the disk, or use another folder (LOCKSTEP_HOME moves what Lockstep keeps)"
        code = _report(error, f"{where}{(error.strerror or str(error)).lower()}", hint, 1, debug)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:
        typer.echo("lockstep: stopped", err=True)
    if code:
        _leave(code)


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """What is ours, and what a `--` passes on to another program untouched."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at : at + 1], words[at + 1 :]


def _report(error: Exception, message: str, hint: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"lockstep: {message}", err=True)
    if hint:
        typer.echo(f"  {hint}", err=True)
    return code


def _leave(code: int) -> NoReturn:
    """Exit with `code` also when standard output cannot be written: Python itself would turn it into 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
