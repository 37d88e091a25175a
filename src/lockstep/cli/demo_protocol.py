"""`lockstep demo protocol`: a replicated log over a real broker, a process killed on the way, and a verdict.

The verdict is computed by the simulator's checkers from what came out: the deliveries that the nodes wrote
to Kafka and the answers that the clients got. Exit code 0 only if every promise was kept.
"""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lockstep import home
from lockstep.errors import LockstepError
from lockstep.log.broker import Broker
from lockstep.observe.progress import Progress
from lockstep.sim.checkers.linearizable import linearizable
from lockstep.sim.checkers.order import exactly_once, no_gap, prefix_agreement
from lockstep.sim.checkers.progress import eventual_answer, eventual_delivery
from lockstep.sim.history import Violation
from lockstep.sim.replog.live import LiveRun, run
from lockstep.sim.replog.scenario import acknowledged, identity, one_copy


def protocol(
    commands: Annotated[int, typer.Option(min=30, max=20_000, help="Commands that clients give.")] = 1500,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Clients at a time.")] = 4,
    bootstrap_servers: Annotated[str, typer.Option(help="A Kafka to use; else an embedded one.")] = "",
) -> None:
    """The protocol kernel for real: a replicated log on three processes, one killed, judged by checkers."""
    console = Console(highlight=False, soft_wrap=True)
    folder = home.runs_folder() / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        folder.mkdir(parents=True)
        live = (
            _live(console, folder, bootstrap_servers, commands, clients)
            if bootstrap_servers
            else _live_with_broker(console, folder, commands, clients)
        )
    except OSError as error:
        raise LockstepError(
            f"cannot write to {folder}: {error.strerror}", hint="make room there, or set LOCKSTEP_HOME"
        ) from error
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    broken = _verdict(console, live)
    if broken:
        raise LockstepError(
            f"{len(broken)} promises were broken; the first: {broken[0].detail}",
            hint=f"the nodes' logs and disks are in {folder}",
        )
    shutil.rmtree(folder, ignore_errors=True)


def _live_with_broker(console: Console, folder: Path, commands: int, clients: int) -> LiveRun:
    began = time.monotonic()
    broker = Broker(folder / "broker")
    try:
        with console.status("starting the embedded Kafka broker"):
            broker.start()
        console.print(f"Kafka is up after {time.monotonic() - began:.1f} s")
        return _live(console, folder, broker.bootstrap_servers, commands, clients)
    finally:
        with console.status("stopping the broker"):
            broker.stop()


def _live(console: Console, folder: Path, servers: str, commands: int, clients: int) -> LiveRun:
    with Progress("commands answered", commands, console) as progress:
        return asyncio.run(
            run(
                folder,
                servers,
                commands=commands,
                clients=clients,
                say=console.print,
                answered=progress.update,
            )
        )


def _verdict(console: Console, live: LiveRun) -> list[Violation]:
    operations, sequences = live.operations, live.sequences
    newest = {sequence.node: sequence for sequence in sequences}
    judged = {
        "every command answered": list(eventual_answer(operations)),
        "prefix agreement": list(prefix_agreement(sequences)),
        "no gap": list(no_gap(sequences, lambda item: item.position, first=1)),
        "exactly once": list(exactly_once(sequences, identity, acknowledged(operations))),
        "linearizable": list(linearizable(operations, key=lambda command: command.key, step=one_copy)),
        "all nodes caught up": list(eventual_delivery(newest.values())),
    }
    if not live.killed:
        judged["a process was killed"] = [Violation("a process was killed", "the run ended before the kill")]
    console.print()
    for sequence in sequences:
        console.print(f"  {sequence.name:<5} delivered {len(sequence.deliveries):>6} log entries")
    console.print()
    for promise, violations in judged.items():
        mark = f"[red]BROKEN[/red]  {violations[0].detail}" if violations else "[green]kept[/green]"
        console.print(f"  {promise:<24} {mark}")
    broken = [violation for violations in judged.values() for violation in violations]
    color, word = ("red", "BROKEN") if broken else ("green", "CLEAN")
    console.print(
        f"\n[bold {color}]{word}[/bold {color}]: {len(operations)} commands in {live.seconds:.1f} s, "
        f"{live.killed or 'nobody'} killed with -9, longest wait for an answer {live.longest_gap * 1000:.0f} ms"
    )
    return broken
