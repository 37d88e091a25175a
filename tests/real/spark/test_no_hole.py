"""Rule 8: a writer leaves no hole. When the broker refuses a record, nothing behind it is written."""

import subprocess
import sys
from pathlib import Path

import pytest
from spark_bench import Bench, wait

pytestmark = pytest.mark.real

LARGE = "x" * 1800


def test_a_record_that_the_broker_refuses_ends_the_site_before_anything_behind_it_is_written(
    bench: Bench, tmp_path: Path
) -> None:
    """The topic's limit is lowered while the site runs, so that its producer does not know of it."""
    source = bench.topic("in", 1)
    sink = bench.topic("out", 1, **{"max.message.bytes": "2000"})
    records = [("k", str(n)) for n in range(100)]
    script = Path(__file__).with_name("refused_site.py")
    command = [sys.executable, str(script), bench.bootstrap_servers, source, sink, str(tmp_path)]
    site = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        bench.produce(source, records[:50])
        wait(lambda: bench.end(sink) == 50)
        bench.configure(sink, **{"max.message.bytes": "1000"})
        wait(lambda: not bench.takes(sink, LARGE))  # the broker follows its configuration after a while
        written = bench.end(sink)
        bench.produce(source, [("k", LARGE), *records[50:]])
        assert site.wait(60) != 0
    finally:
        site.kill()
    assert "Kafka refused an output" in (tmp_path / "last_words").read_text()
    assert bench.end(sink) == written
