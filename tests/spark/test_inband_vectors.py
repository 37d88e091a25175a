"""The Java merge of heartbeats in band equals the Python one on generated queues (Algorithm 1 judges that one)."""

import random
from collections.abc import Callable
from typing import Any

from lockstep.order.inband import Event, Heartbeat, InBandMerge, Numbers, QueuePosition, decode, encode

STORIES = 12_000
_FOREIGN = (
    "",
    "null",
    "[]",
    "{",
    '{"is":"heartbeat"}',
    '{"is":"heartbeat","sequence":1.5}',
    '{"is":"heartbeat","sequence":"9"}',
    '{"is":"heartbeat","sequence":99999999999999999999999}',
    '{"is":"heartbeat","sequence":-1}',
    '{"is":"heartbeat","sequence":1,"more":2}',
    '{"is":"heartbeat","sequence":1,"by":7}',
    '{"is":"heartbeat","sequence":1} {}',
    '{"is":"event","sequence":3}',
)
"""No heartbeats: to the source they are records like any other."""


def test_java_merges_queues_with_heartbeats_as_python_does(replay: Callable[..., Any]) -> None:
    answer = replay(story(seed) for seed in range(STORIES))
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout.split()[-1]) >= STORIES


def test_what_is_no_heartbeat_to_java_is_none_to_python() -> None:
    assert [text for text in _FOREIGN if decode(text.encode()) is not None] == []


def test_java_notices_another_turn(replay: Callable[..., Any]) -> None:
    """The planted bug: stories that were told by a merge that begins with the first active queue each time."""
    answer = replay(story(seed, Forgetful) for seed in range(20))
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
