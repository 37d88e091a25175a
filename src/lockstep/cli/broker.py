"""`lockstep broker`: the embedded Kafka in the foreground, until Ctrl-C."""

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from lockstep import home
from lockstep.log.broker import Broker

app = typer.Typer(add_completion=False)

_WATCH_SECONDS = 0.2


@app.command()
def broker(
    nodes: Annotated[int, typer.Option(help="1 or 3 nodes.")] = 1,
    folder: Annotated[Path | None, typer.Option(help="Where the data lives; it survives a restart.")] = None,
    port: Annotated[int, typer.Option(help="First node's port; the others count up. 0: free ones.")] = 0,
) -> None:
    """Run the embedded Kafka broker (1 or 3 nodes) in the foreground."""
    place = folder or home.runs_folder() / f"broker-{nodes}"
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _interrupt)
    embedded = Broker(place, nodes=nodes, port=port)
    try:
        with console.status(f"starting {nodes} Kafka node(s) in {place}"):
            embedded.start()
        typer.echo(embedded.bootstrap_servers)
        console.print("Kafka is up; Ctrl-C stops it.")
        while True:
            embedded.check()
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        with console.status("stopping"):
            embedded.stop()
        console.print("stopped; the data stays.")
    finally:
        embedded.stop()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
