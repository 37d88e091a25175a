"""The probe is the judge of the pipeline benches: it must see what is lost, duplicated, different or late."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from lockstep.bench.probe import Probe, summary
from lockstep.bench.report import Report
from lockstep.errors import LockstepError


def row(n: int, *, produced: int = 0, count: int | None = None) -> bytes:
    return b"%d,%d,%d" % (n, produced, n // 100 + 1 if count is None else count)


def probe_of(*batches: Iterable[bytes]) -> Probe:
    waiting = [list(batch) for batch in batches]
    probe = Probe(lambda timeout: waiting.pop(0) if waiting else [])
    deadline = time.monotonic() + 5
    while waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    probe.close()
    return probe


def test_a_whole_output_is_clean() -> None:
    assert probe_of(map(row, range(300))).verdict(0, 300).wrong == 0


def test_a_missing_output_is_lost() -> None:
    assert probe_of(row(n) for n in range(300) if n != 17).verdict(0, 300).lost == 1


def test_a_repeated_output_is_duplicated() -> None:
    assert probe_of(map(row, range(300)), [row(17)]).verdict(0, 300).duplicated == 1


def test_a_count_that_the_oracle_does_not_know_is_different() -> None:
    assert probe_of([row(0), row(1, count=2)]).verdict(0, 2).different == 1


def test_the_longest_gap_includes_the_edges_of_the_window() -> None:
    began = time.monotonic()
    probe = probe_of([row(0)])
    assert probe.longest_gap_ms(began - 1, began) == pytest.approx(1000, abs=1)
    assert probe.longest_gap_ms(began, time.monotonic()) < 1000


def test_a_probe_that_fails_says_so_instead_of_waiting() -> None:
    def broken(timeout: float) -> Iterable[bytes]:
        raise OSError("the broker is gone")

    probe = Probe(broken)
    with pytest.raises(LockstepError, match="the broker is gone"):
        probe.wait_for(0, 1, timeout=5)
    probe.close()


def test_a_window_without_output_is_an_error_not_a_zero() -> None:
    with pytest.raises(LockstepError, match="no output"):
        summary([])


def test_a_report_is_met_only_if_every_bar_is(tmp_path: Path) -> None:
    report = Report("some", quick=True)
    report.bar("fast enough", 1.0, "<=", 2.0, "ms")
    assert report.met
    report.bar("many enough", 1.0, ">=", 2.0)
    assert not report.met
    report.write(tmp_path / "deep" / "some.json")
    written = json.loads((tmp_path / "deep" / "some.json").read_text())
    assert [bar["met"] for bar in written["bars"]] == [True, False]
    assert written["machine"]
