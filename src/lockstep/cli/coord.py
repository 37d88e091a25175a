"""`lockstep coord`: run, watch and use the coordination service."""

import asyncio
import ssl
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lockstep import home
from lockstep.coordination import membership
from lockstep.coordination.config import NodeConfig, Tls
from lockstep.coordination.connection import parse_servers
from lockstep.coordination.ensemble import ask
from lockstep.coordination.node import Node
from lockstep.coordination.shell import Shell
from lockstep.coordination.zab.settings import VARIANTS, variant
from lockstep.errors import LockstepError, UsageError
from lockstep.protocol import runner

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="The coordination service: ZooKeeper's protocol, recovered from a crash in tens of milliseconds.",
)

SERVERS = "1=host:port-for-servers:port-for-clients,2=..."


@app.command()
def serve(
    server: Annotated[int, typer.Option("--id", help="Which server of the list this is.")] = 1,
    servers: Annotated[str, typer.Option(help=f"The whole ensemble: {SERVERS}")] = "1=127.0.0.1:2888:2181",
    data: Annotated[Path | None, typer.Option(help="The data folder of this server.")] = None,
    name: Annotated[
        str, typer.Option(help="A name of the ensemble: servers of another one are refused.")
    ] = "",
    tick: Annotated[int, typer.Option(help="Milliseconds; session timeouts lie in 2 to 20 ticks.")] = 2000,
    technique: Annotated[str, typer.Option("--variant", help=f"One of {', '.join(VARIANTS)}.")] = "rtzk",
    secret_file: Annotated[Path | None, typer.Option(help="A secret that all servers share.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) for clients and servers.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Who signs the other servers' certificates.")] = None,
    metrics: Annotated[int, typer.Option(help="Port for Prometheus; 0 for none.")] = 0,
    snapshot_every: Annotated[int, typer.Option(help="Transactions between two snapshots.")] = 100_000,
    enforce_quota: Annotated[bool, typer.Option(help="Refuse what passes a hard quota.")] = False,
    super_digest: Annotated[str | None, typer.Option(help="user:hash of who may do everything.")] = None,
) -> None:
    """Run one server in the foreground until Ctrl-C."""
    members = membership.parse(servers)
    if server not in members:
        raise UsageError(f"there is no server {server} in {servers}", hint="name one of the list with --id")
    if not 1 <= tick <= 600_000:
        raise UsageError(f"a tick of {tick} ms makes no sense", hint="choose 100 to 10000")
    config = NodeConfig(
        server,
        members,
        data or home.runs_folder() / "coordination" / str(server),
        name=name,
        tick_ms=tick,
        zab=variant(technique),  # type: ignore[arg-type]
        secret=_secret(secret_file),
        super_digest=super_digest,
        enforce_quota=enforce_quota,
        snapshot_every=snapshot_every,
        tls=_tls(tls_cert, tls_key, tls_ca),
    )
    run_server(config, metrics_port=metrics)


def run_server(config: NodeConfig, *, metrics_port: int = 0) -> None:
    """Run one server as this whole process."""

    def ready(node: Node) -> None:
        if metrics_port:
            from lockstep.coordination.metrics import expose

            expose(node, metrics_port)
        typer.echo(f"server {config.server} listens for clients on {node.client_address}")

    runner.serve(lambda: Node(config), ready=ready)


@app.command()
def status(
    servers: Annotated[
        str, typer.Argument(help="host:port,host:port,... of the client ports")
    ] = "127.0.0.1:2181",
) -> None:
    """Ask each server what it is doing; exit 0 only if there is one leader."""
    table = Table("server", "state", "epoch", "zxid", "nodes", "sessions", "clients", "outstanding")
    leaders = 0
    for host, port in parse_servers(servers):
        figures = _mntr(host, port)
        state = figures.get("zk_server_state", "no answer")
        leaders += state in ("leader", "standalone")
        zxid = figures.get("zk_last_zxid")
        table.add_row(
            f"{host}:{port}",
            state,
            figures.get("zk_epoch", ""),
            f"{int(zxid):#x}" if zxid and zxid.isdigit() else zxid or "",
            figures.get("zk_znode_count", ""),
            figures.get("zk_global_sessions", ""),
            figures.get("zk_num_alive_connections", ""),
            figures.get("zk_outstanding_requests", ""),
        )
    Console().print(table)
    if leaders != 1:
        raise LockstepError(
            f"{leaders or 'no'} leaders among these servers",
            hint="start more than half of the servers of the ensemble, and name them all here",
        )


@app.command()
def shell(
    servers: Annotated[str, typer.Argument(help="host:port,host:port,...")] = "127.0.0.1:2181",
    command: Annotated[str, typer.Option("--command", "-c", help="Run this and exit.")] = "",
) -> None:
    """Look at nodes and change them by hand (`help` lists the commands)."""
    asyncio.run(Shell(servers).run(command))


@app.command()
def dump(
    data: Annotated[Path, typer.Argument(help="The data folder of a server, running or not.")],
    tree: Annotated[bool, typer.Option("--tree", help="List the nodes of the newest snapshot too.")] = False,
) -> None:
    """Print what a data folder holds: snapshots, and every record of the log."""
    from lockstep.coordination.dump import lines

    for line in lines(data, with_tree=tree):
        typer.echo(line)


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option(help="How many schedules.")] = 20_000,
    first: Annotated[int, typer.Option(help="The first seed; with --seeds 1 it replays one.")] = 0,
) -> None:
    """Run the service under random schedules: elections, restarts, lag, snapshots, moving clients."""
    from collections import Counter

    from lockstep.coordination.service_simulation import World
    from lockstep.observe.progress import Progress

    total: Counter[str] = Counter()
    with Progress("simulating", seeds, Console(stderr=True)) as progress:
        for seed in range(first, first + seeds):
            try:
                total += World(seed).run()
            except AssertionError as violation:
                raise LockstepError(
                    f"seed {seed}: {violation}",
                    hint=f"replay it: lockstep coord simulate --first {seed} --seeds 1",
                ) from violation
            progress.advance()
    table = Table("what", "how often", title=f"{seeds} schedules, no promise broken")
    for name, count in sorted(total.items()):
        table.add_row(name, str(count))
    Console().print(table)


@app.command()
def fuzz(
    inputs: Annotated[int, typer.Option(help="How many byte strings.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same inputs.")] = 1,
) -> None:
    """Feed damaged bytes to every decoder: each must accept or refuse, and nothing else."""
    from lockstep.coordination.fuzz import Finding, run
    from lockstep.observe.progress import Progress

    with Progress("fuzzing", inputs, Console(stderr=True)) as progress:
        try:
            outcomes = run(inputs, seed, progress=progress.advance)
        except Finding as finding:
            raise LockstepError(str(finding), hint=f"it comes again with --seed {seed}") from finding
    table = Table("decoder", "accepted", "refused")
    for name, outcome in outcomes.items():
        table.add_row(name, str(outcome["accepted"]), str(outcome["refused"]))
    Console().print(table)


def _mntr(host: str, port: int) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in ask(host, port, "mntr").splitlines() if "\t" in line)


def _secret(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"cannot read the secret in {path}: {error.strerror}") from error
    if len(secret) < 16:
        raise UsageError(
            f"the secret in {path} is shorter than 16 bytes",
            hint="make one: head -c 32 /dev/urandom | base64 > FILE",
        )
    return secret


def _tls(cert: Path | None, key: Path | None, authority: Path | None) -> Tls:
    if cert is None:
        return Tls()
    try:
        clients = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        clients.load_cert_chain(cert, key)
        if authority is None:
            return Tls(clients)
        accept = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        dial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        dial.check_hostname = False  # servers are known by the authority's signature, not by a name
        for context in (accept, dial):
            context.load_cert_chain(cert, key)
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return Tls(clients, accept, dial)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the certificate {cert}: {error}", hint="give PEM files") from error
