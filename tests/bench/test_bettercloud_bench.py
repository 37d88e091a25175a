"""The figures of `lockstep bench bettercloud`: seconds around the kill, repeated alerts, the plot."""

from pathlib import Path

from lockstep.bench import bettercloud
from lockstep.bench.bettercloud import Measured, by_second
from lockstep.bench.report import Report


def test_p99_is_of_the_seconds_in_which_alerts_arrived_and_second_0_begins_with_the_kill() -> None:
    arrivals = [(7_000.0, 1.0), (9_100.0, 5.0), (9_900.0, 7.0), (10_000.0, 3.0), (13_999.0, 3000.0)]
    assert by_second(arrivals, origin_ms=10_000, since_ms=8_000) == {-1: 7.0, 0: 3.0, 3: 3000.0}


def test_one_late_alert_in_a_hundred_does_not_make_the_p99_and_two_do() -> None:
    arrivals = [(500.0, 1.0)] * 99
    assert by_second([*arrivals, (500.0, 900.0)], 0, 0) == {0: 1.0}
    assert by_second([*arrivals, (500.0, 900.0), (500.0, 900.0)], 0, 0) == {0: 900.0}


def test_seconds_without_alerts_are_silent() -> None:
    measured = Measured({-2: 4.0, -1: 5.0, 0: 6.0, 3: 3000.0}, 4, "site-1", "", 0)
    assert (measured.before, measured.after, measured.silent_seconds(5)) == ([4.0, 5.0], [6.0, 3000.0], 3)
    assert (measured.seconds_beyond(2000), measured.seconds_beyond(4.5)) == (1, 3)


def test_a_repeated_alert_counts_by_its_first_arrival() -> None:
    first, again = {"shard": 0, "sn": 1, "rank": 0}, {"shard": 0, "sn": 1, "rank": 0}
    other = {"shard": 0, "sn": 1, "rank": 1}
    assert bettercloud._first_of_each([(1.0, first), (2.0, other), (3.0, again)]) == [
        (1.0, first),
        (2.0, other),
    ]


def test_a_run_that_differs_from_the_oracle_or_is_late_misses_its_bars() -> None:
    report = Report("bettercloud", quick=True)
    good = Measured({-1: 40.0, 0: 300.0}, 9, "site-1", "", 0)
    bettercloud._bars(report, "realtime", 1000, "liverobin", [good])
    assert report.met
    for bad in (Measured({-1: 40.0, 0: 701.0}, 9, "", "", 0), Measured({-1: 40.0}, 9, "", "lost", 1)):
        report = Report("bettercloud", quick=True)
        bettercloud._bars(report, "realtime", 1000, "liverobin", [good, bad])
        assert not report.met


def test_every_rate_and_engine_has_to_keep_the_objective() -> None:
    for engine, rate in (("realtime", 5000), ("microbatch", 1000)):
        for worst, met in ((1999.0, True), (2001.0, False)):
            report = Report("bettercloud", quick=True)
            measured = Measured({-1: 40.0, 0: worst}, 9, "site-1", "", 0)
            bettercloud._bars(report, engine, rate, "kazoo leader", [measured])  # type: ignore[arg-type]
            assert report.met is met


def test_a_plot_is_drawn_for_each_engine_and_rate_that_was_measured(tmp_path: Path) -> None:
    report = Report("bettercloud", quick=True)
    for configuration in ("passive", "liverobin"):
        measured = Measured({-1: 40.0, 0: 60.0, 2: 900.0}, 3, "site-1", "", 0)
        report.figures[f"{configuration}, realtime, 1000 ev/s"] = [bettercloud._figures(measured)]
    [drawn] = bettercloud.plot(report, tmp_path)
    assert drawn.name == "bettercloud-realtime-1000.png"
    assert drawn.stat().st_size > 10_000
