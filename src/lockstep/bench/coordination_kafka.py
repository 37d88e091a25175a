"""`lockstep bench coordination-kafka`: the case study of the paper's section 7 with Kafka 3.9.1.

Two brokers, replication 2, a message every 100 ms.

1. **Ticks** (figure 14): the leading broker dies, at ticks of 300 to 2,000 ms; a broker's session is two
   ticks. Nothing of the ensemble fails, so this is about the tick alone.
2. **Sides** (figures 12, 13, 15) at a tick of 300 ms: our variants and ZooKeeper 3.9.5, each with Kafka's own
   patient ZooKeeper client and with the paper's impatient one. The ensemble's leader dies; leader and broker
   die together; topics are created, with and without a kill.

Everything runs on one machine; brokers and servers share its cores. Only one side is there at a time.
"""

import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from lockstep.bench.coordination_kafka_cluster import VERSION as KAFKA
from lockstep.bench.coordination_kafka_cluster import KafkaPair
from lockstep.bench.coordination_kafka_rounds import Failure, Round, create, fail
from lockstep.bench.coordination_kafka_traffic import PERIOD_SECONDS, Traffic
from lockstep.bench.coordination_sides import OurSide, Side, SideName
from lockstep.bench.peers.zookeeper import VERSION as ZOOKEEPER
from lockstep.bench.peers.zookeeper import ZooKeeper
from lockstep.bench.report import Report
from lockstep.errors import LockstepError
from lockstep.observe.percentiles import median, percentile
from lockstep.observe.progress import Progress

Patience = Literal["patient", "impatient"]
TOPIC = "mytopic"
SERVERS = 3
SHORT_TICK_MS = 300


@dataclass(frozen=True)
class Plan:
    rounds: int
    """Of each kind, in each setting."""
    ticks_ms: tuple[int, ...] = (300, 500, 1000, 2000)
    sides: tuple[SideName, ...] = ("vanilla", "rtzk-l", "rtzk", "zookeeper")
    clients: tuple[Patience, ...] = ("patient", "impatient")


FULL = Plan(rounds=20)
QUICK = Plan(rounds=2, ticks_ms=(300, 2000), sides=("rtzk", "zookeeper"))


@dataclass(frozen=True)
class Setting:
    """What is started, and what is done to it."""

    side: SideName
    client: Patience
    tick_ms: int
    failures: tuple[Failure, ...]
    with_topics: bool = False

    @property
    def name(self) -> str:
        return f"{self.side}-{self.client}-{self.tick_ms}-{'-'.join(self.failures)}"


@dataclass
class Found:
    """Of one side with one kind of client, at one tick."""

    rounds: dict[Failure, list[Round]]
    topics_ms: dict[str, list[float]]
    messages: int = 0
    lost: int = 0
    problem: str = ""
    """Why it ended before its time."""


def run(quick: bool, console: Console) -> Report:
    return measure(QUICK if quick else FULL, console, quick=quick)


def measure(plan: Plan, console: Console, *, quick: bool) -> Report:
    report = Report("coordination-kafka", quick)
    report.figures["settings"] = {
        **asdict(plan),
        "kafka": KAFKA,
        "zookeeper": ZOOKEEPER,
        "message_period_ms": PERIOD_SECONDS * 1000,
        "session_ticks": 2,
    }
    blocks = len(plan.ticks_ms) + 4 * len(plan.sides) * len(plan.clients)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        Progress("rounds", blocks * plan.rounds, console) as progress,
    ):
        ticks = {
            tick: _block(
                Setting("rtzk", "impatient", tick, ("broker",)), Path(name), plan.rounds, progress.advance
            )
            for tick in plan.ticks_ms
        }
        sides: dict[SideName, dict[Patience, Found]] = {side: {} for side in plan.sides}
        settings = [
            Setting(side, client, SHORT_TICK_MS, ("zookeeper", "both"), with_topics=True)
            for side in plan.sides
            for client in plan.clients
        ]
        random.Random(7).shuffle(settings)
        for setting in settings:
            sides[setting.side][setting.client] = _block(setting, Path(name), plan.rounds, progress.advance)
    _report_ticks(report, ticks, console)
    _report_sides(report, sides, console)
    _bars(report, ticks, sides)
    return report


def plot(report: Report, folder: Path) -> list[Path]:
    from lockstep.bench.coordination_plots import worst_by_tick, worst_cdf

    return [
        worst_by_tick(report.figures["ticks"], folder / "coordination-kafka-ticks.png"),
        worst_cdf(report.figures["sides"], folder / "coordination-kafka-sides.png"),
    ]


def _block(setting: Setting, parent: Path, rounds: int, done: Callable[[], None]) -> Found:
    """Start an ensemble and two brokers, do all that is asked of them, stop them. If they do not come to rest any
    more, what was measured until then counts."""
    kinds: tuple[str, ...] = ("calm", "kill") if setting.with_topics else ()
    found = Found({failure: [] for failure in setting.failures}, {kind: [] for kind in kinds})
    folder, tick_ms = parent / setting.name, setting.tick_ms
    with (
        _side(setting.side, folder / "ensemble", tick_ms) as side,
        KafkaPair(
            folder / "kafka", side.connect_string, tick_ms=tick_ms, patient=setting.client == "patient"
        ) as kafka,
    ):
        side.wait_in_sync()
        kafka.create_topic(TOPIC)
        with Traffic(kafka, TOPIC) as traffic:
            try:
                _rounds(found, side, kafka, traffic, rounds, done)
            except LockstepError as error:
                found.problem = f"{setting.name}: {error.message}"
            found.lost, found.messages = traffic.finish(), traffic.sent
    return found


def _rounds(
    found: Found, side: Side, kafka: KafkaPair, traffic: Traffic, rounds: int, done: Callable[[], None]
) -> None:
    for failure, samples in found.rounds.items():
        for _ in range(rounds):
            samples.append(fail(side, kafka, traffic, TOPIC, failure))
            done()
    kafka.wait_replicated(TOPIC)
    for kind, took in found.topics_ms.items():
        for number in range(rounds):
            took.append(create(side, kafka, f"{kind}-{number}", kill=kind == "kill"))
            done()


def _side(name: SideName, folder: Path, tick_ms: int) -> Side:
    if name == "zookeeper":
        return ZooKeeper(folder, servers=SERVERS, tick_ms=tick_ms)
    return OurSide(name, folder, servers=SERVERS, variant=name, tick_ms=tick_ms)


# What is shown.


def _summary(samples: list[float]) -> dict[str, Any]:
    if not samples:
        return {"count": 0}
    return {
        "count": len(samples),
        "median": round(median(samples), 1),
        "p95": round(percentile(samples, 95), 1),
        "max": round(max(samples), 1),
        "samples": [round(sample, 1) for sample in samples],
    }


def _worst(found: Found, failure: Failure) -> dict[str, Any]:
    return _summary([one.worst_ms for one in found.rounds[failure]])


def _report_ticks(report: Report, ticks: dict[int, Found], console: Console) -> None:
    report.figures["ticks"] = {str(tick): _worst(found, "broker") for tick, found in ticks.items()}
    table = Table(
        "tick",
        "session",
        "median",
        "p95",
        "max",
        title="longest message latency when the leading broker dies, ms (rtzk, impatient)",
        title_justify="left",
    )
    for tick, one in report.figures["ticks"].items():
        table.add_row(
            tick,
            str(2 * int(tick)),
            *(f"{one.get(figure, float('nan')):.0f}" for figure in ("median", "p95", "max")),
        )
    console.print(table)


def _report_sides(report: Report, sides: dict[SideName, dict[Patience, Found]], console: Console) -> None:
    figures: dict[str, Any] = {}
    table = Table(
        title=f"tick {SHORT_TICK_MS} ms; medians (largest), ms", title_justify="left", pad_edge=False
    )
    for column in ("side", "client", "reconnected", "kept", "leader dies", "both die", "topic", "with kill"):
        table.add_column(column, justify="left" if column in ("side", "client") else "right")
    for side, clients in sides.items():
        for client, found in clients.items():
            reconnections = [one.reconnection for rounds in found.rounds.values() for one in rounds]
            one: dict[str, Any] = {
                "reconnection": _summary([took for each in reconnections for took in each.took]),
                "connections_kept": sum(each.kept for each in reconnections),
                "sessions_expired": sum(each.expired for each in reconnections),
                "zookeeper_dies": _worst(found, "zookeeper"),
                "both_die": _worst(found, "both"),
                "topic": _summary(found.topics_ms["calm"]),
                "topic_with_kill": _summary(found.topics_ms["kill"]),
                "messages": found.messages,
                "lost": found.lost,
            }
            figures.setdefault(side, {})[client] = one
            shown = ("zookeeper_dies", "both_die", "topic", "topic_with_kill")
            table.add_row(
                side,
                client,
                _cell(one["reconnection"]),
                str(one["connections_kept"]),
                *(_cell(one[name]) for name in shown),
            )
    report.figures["sides"] = figures
    console.print(table)


def _cell(one: dict[str, Any]) -> str:
    return f"{one['median']:.0f} ({one['max']:.0f})" if one["count"] else "-"


def _bars(report: Report, ticks: dict[int, Found], sides: dict[SideName, dict[Patience, Found]]) -> None:
    blocks = [*ticks.values(), *(found for clients in sides.values() for found in clients.values())]
    report.notes += [f"not finished: {found.problem}" for found in blocks if found.problem]
    ours = [*ticks.values(), *sides["rtzk"].values()]
    report.bar("rtzk: settings that did not come to rest", sum(bool(f.problem) for f in ours), "<=", 0)
    report.bar("acknowledged messages that were lost", sum(found.lost for found in blocks), "<=", 0)
    report.bar(
        "rtzk, the ensemble's leader dies: longest message latency, median",
        _median(report.figures["sides"]["rtzk"]["impatient"]["zookeeper_dies"]),
        "<=",
        PERIOD_SECONDS * 1000,
        "ms",
    )
    if "zookeeper" not in sides:
        return
    for client in sides["zookeeper"]:
        rtzk, real = (report.figures["sides"][name][client] for name in ("rtzk", "zookeeper"))
        for figure, text in (("both_die", "both die"), ("topic_with_kill", "a topic and a kill")):
            ratio = _median(real[figure]) / _median(rtzk[figure])
            report.bar(f"{client} client, {text}: ZooKeeper's median over rtzk's", ratio, ">=", 1)


def _median(one: dict[str, Any]) -> float:
    """Without a single sample nothing is as slow as one likes."""
    return float(one.get("median", float("inf")))
