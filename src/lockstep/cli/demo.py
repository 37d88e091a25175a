"""`lockstep demo`: see it work. A pipeline on live sites, or with `protocol` the kernel below it."""

from typing import Annotated

import typer
from rich.console import Console

from lockstep.cli.demo_protocol import protocol

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
app.command("protocol")(protocol)


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="A Kafka to use; without it an embedded one is started.")
    ] = None,
) -> None:
    """A pipeline on two live sites under load: one is killed with -9, and a verdict says what was noticed.

    Takes about two minutes. Exit code 0 only if nothing was lost, duplicated or different.
    """
    if context.invoked_subcommand is None:
        from lockstep.cli import demo_pipeline

        demo_pipeline.run(Console(highlight=False), bootstrap_servers)
