"""`lockstep doctor`: check this machine, and say what to do about each finding."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lockstep.errors import UsageError
from lockstep.setup.doctor import Finding, State, checks

_MARKS = {
    State.GOOD: ("ok", "green"),
    State.DOUBTFUL: ("doubtful", "yellow"),
    State.BROKEN: ("broken", "red"),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command(
    help="Check Java, memory, disk, ports, jars and Kafka; say what to do about each finding.\n\n"
    "Exit code 0 if nothing is broken, else 1."
)
def doctor(
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", help="Also ask this Kafka cluster: HOST:PORT,...")
    ] = None,
    kafka_option: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka-option", help="A client option for it, NAME=VALUE (security, ...). May be repeated."
        ),
    ] = None,
) -> None:
    options = dict(_parsed(word) for word in kafka_option or ())
    console = Console()
    progress = Console(stderr=True)
    broken = 0
    for name, check in checks(bootstrap_servers, options):
        with progress.status(f"checking {name}"):
            findings = check()
        for finding in findings:
            _show(console, finding)
            broken += finding.state is State.BROKEN
    if broken:
        console.print(f"\n{broken} thing(s) to repair.", style="red")
        raise typer.Exit(1)
    console.print("\nThis machine is ready.", style="green")


def _parsed(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise UsageError(f"{word!r} is not a Kafka option", hint="write NAME=VALUE: security.protocol=SSL")
    return name, value


def _show(console: Console, finding: Finding) -> None:
    mark, colour = _MARKS[finding.state]
    line = Text.assemble((f"{mark:9}", colour), f"{finding.subject:12} {finding.found}")
    console.print(line, soft_wrap=True)
    if finding.todo:
        console.print(Text(f"{'':9}{'':12} -> {finding.todo}"), soft_wrap=True)
