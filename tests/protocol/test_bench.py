"""`lockstep bench host` measures what it says."""

import io

from rich.console import Console

from lockstep.bench import host
from lockstep.bench.host import Echo, Ping, Pong
from lockstep.protocol.machine import Deliver, Send


def test_the_bench_machine_answers_each_ping_once_and_delivers_each_pong() -> None:
    machine = Echo()
    assert list(machine.on_message("a", Ping(1, 2))) == [Send("a", Pong(1, 2))]
    assert list(machine.on_message("b", Pong(1, 2))) == [Deliver(Pong(1, 2))]


def test_a_short_run_between_two_processes_reports_both_bars() -> None:
    """Whether they are met depends on who else uses the cores; that every ping came back does not."""
    report = host.measure(1, 0.2, Console(file=io.StringIO()), quick=True)
    assert [bar.sense for bar in report.bars] == [">=", "<="]
    assert report.figures["rate_median"] > 1000
    (latency,) = report.figures["latency"]
    assert latency["count"] == 0.2 * host.REQUIRED_RATE / 10
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
