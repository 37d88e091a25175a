"""The Java merge of heartbeats in band equals the Python one on generated queues (Algorithm 1 judges that one)."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

from lockstep.order.inband import Event, Heartbeat, InBandMerge, Numbers, QueuePosition, encode

STORIES = 12_000
VECTORS = Path(__file__).resolve().parents[1] / "vectors"
_FOREIGN = (
    "",
    "null",
    "[]",
    "{",
    '{"is":"heartbeat"}',
    '{"is":"heartbeat","sequence":1.5}',
    '{"is":"heartbeat","sequence":"9"}',
    '{"is":"heartbeat","sequence":99999999999999999999999}',
    '{"is":"event","sequence":3}',
)
"""No heartbeats: to the source they are records like any other."""


def test_java_merges_queues_with_heartbeats_as_python_does(java_runner: list[str], tmp_path: Path) -> None:
    stories = tmp_path / "stories.jsonl"
    stories.write_text("".join(json.dumps(story(seed)) + "\n" for seed in range(STORIES)))
    answer = subprocess.run([*java_runner, str(VECTORS), str(stories)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout.split()[-1]) >= STORIES


def test_java_notices_another_turn(java_runner: list[str], tmp_path: Path) -> None:
    """The planted bug: stories that were told by a merge that begins with the first active queue each time."""
    stories = tmp_path / "stories.jsonl"
    stories.write_text("".join(json.dumps(story(seed, Forgetful)) + "\n" for seed in range(20)))
    answer = subprocess.run([*java_runner, str(VECTORS), str(stories)], capture_output=True, text=True)
    assert answer.returncode != 0
    assert "expected" in answer.stderr


class Forgetful(InBandMerge):
    def _turn(self) -> None:
        self.next = self.active()[0]


def story(seed: int, kind: type[InBandMerge] = InBandMerge) -> dict[str, Any]:
    rng = random.Random(seed)
    queues: list[list[str]] = []
    merge = kind([QueuePosition(0, Numbers())] * rng.randint(1, 4))
    for queue in range(len(merge.consumed)):
        texts: list[str] = []
        beat = events = 0
        for offset in range(rng.randrange(25)):
            if rng.random() < 0.4:
                beat += rng.choice((0, 1, 1, 1, 1, 2))  # repeated, next, one missing
                late = Heartbeat(max(0, beat - rng.choice((0, 0, 0, 2))), rng.choice(("", "heart-1")))
                texts.append(encode(late).decode())
                merge.arrive(queue, offset, late)
            else:
                texts.append(rng.choice(("an event", *_FOREIGN)))
                merge.arrive(queue, offset, Event(events, b"%d" % offset))
                events += 1
        queues.append(texts)
    taken = []
    while (found := merge.take()) is not None:
        at, item = found
        if isinstance(item, Event):
            taken.append([at, int(item.value), len(taken)])
    return {"seed": seed, "queues": queues, "taken": taken}
