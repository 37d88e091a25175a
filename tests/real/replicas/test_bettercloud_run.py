"""BetterCloud as a user runs it: merged input, two stages, two sites, one killed; the oracle's alerts, each once."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import lockstep
from lockstep import process

EXAMPLE = Path(__file__).parents[3] / "examples" / "bettercloud"
sys.path.insert(0, str(EXAMPLE))

import agreed
from oracle import Alert, alert_of, compare, replay

pytestmark = pytest.mark.real

SECONDS = 6


@pytest.mark.parametrize(
    ("file", "order", "in_order"),
    [("pipeline.py", "liverobin", True), ("microbatch.py", "kazoo", False)],
)
def test_the_examples_alerts_are_the_oracles_also_when_a_site_is_killed(
    bootstrap_servers: str, tmp_path: Path, file: str, order: Any, in_order: bool
) -> None:
    events, controls, alerts, qualified = (f"bettercloud-{order}-{one}" for one in ("e", "c", "a", "q"))
    create(bootstrap_servers, {events: 2, controls: 1, alerts: 2})
    for copied in EXAMPLE.glob("*.py"):
        text = copied.read_text()
        if copied.name == file:
            names = {
                "customer-events": events,
                "control-events": controls,
                "qualified-events": qualified,
                '"alerts"': f'"{alerts}"',
                "(merged)": f'(merged, "{controls}")',
            }
            for name, replaced in names.items():
                text = text.replace(f'"{name}"' if name.endswith("-events") else name, f'"{replaced}"' if name.endswith("-events") else replaced)
        (tmp_path / copied.name).write_text(text)
    with lockstep.run(
        tmp_path / file,
        order=order,
        name=f"bettercloud-{order}",
        bootstrap_servers=bootstrap_servers,
        folder=tmp_path / "run",
    ) as job:
        feed = process.launch(
            [
                *(sys.executable, str(EXAMPLE / "feed.py"), f"--bootstrap-servers={bootstrap_servers}"),
                *(f"--events={events}", f"--controls={controls}", "--rate=300", f"--seconds={SECONDS}"),
                "--controls-per-second=20",
            ],
            log=tmp_path / "feed.log",
        )
