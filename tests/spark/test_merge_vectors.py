"""The Java merge equals the Python machine on generated stories (and Algorithm 1 judges the Python one).

A story is a random order topic: cuts that overlap and go back, that add queues and contradict each other about
them, claims and orders of right and wrong epochs, skips, and bytes that are no order record. Between its records
inputs are taken, places are noted, and the merge begins anew at one of them, as a site does.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.order.acceptance import Acceptance
from lockstep.order.merge import Merge, Position
from lockstep.order.records import Claim, Cut, Order, Skip, decode, encode

STORIES = 12_000

_GARBAGE = (
    "",
    "null",
    "[]",
    "{}",
    '{"is":"cut"}',
    '{"is":"cut","ends":[1,"2"]}',
    '{"is":"cut","ends":[1.5,2]}',
    '{"is":"cut","ends":[-1,2]}',
    '{"is":"cut","ends":[99999999999999999999999,2]}',
    '{"is":"cut","ends":[1,2],"more":1}',
    '{"is":"cut","ends":[1,2],"by":7}',
    '{"is":"cut","ends":[1,2]} {}',
    '{"is":"cut","ends":[1,2],"added":null}',
    '{"is":"cut","ends":[1,2],"added":{}}',
    '{"is":"cut","ends":[1,2,3],"added":[["t0"]]}',
    '{"is":"cut","ends":[1,2,3],"added":["t0"]}',
    '{"is":"cut","ends":[1,2,3],"added":[["t0",1,2]]}',
    '{"is":"cut","ends":[1,2,3],"added":[["t0","1"]]}',
    '{"is":"cut","ends":[1,2,3],"added":[["t0",-1]]}',
    '{"is":"cut","ends":[1,2,3],"added":[["t0",2147483648]]}',
    '{"is":"cut","ends":[1,2,3],"added":[["",1]]}',
    '{"is":"cut","ends":[1,2,3],"added":[["t 0",1]]}',
    '{"is":"cut","ends":[1,2,3],"added":[["t0\\n",1]]}',
    '{"is":"cut","ends":[1,2,3],"added":[[7,1]]}',
    '{"is":"claim","epoch":"1"}',
    '{"is":"claim","epoch":null}',
    '{"is":"order","epoch":1,"version":1,"runs":[[0]]}',
    '{"is":"order","epoch":1,"version":1,"runs":[[0,1,2]]}',
    '{"is":"order","epoch":1,"version":1,"runs":[[0,-1]]}',
    '{"is":"order","epoch":1,"runs":[]}',
    '{"is":"skip","queue":0,"offset":1}',
    '{"is":"skip","queue":-1,"offset":1,"reason":""}',
    '{"is":"strange"}',
    '{"ends":[1,2]}',
    "cut",
)


def test_java_merges_as_python_does(replay: Callable[..., Any]) -> None:
    answer = replay(story(seed) for seed in range(STORIES))
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout.split()[-1]) >= STORIES


def test_java_notices_another_tie_break(replay: Callable[..., Any]) -> None:
    """The planted bug: a story that was told by a merge whose round robin begins anew in every cycle."""
    answer = replay(story(seed, Forgetful) for seed in range(20))
    assert answer.returncode != 0
    assert "expected" in answer.stderr


class Forgetful(Merge):
    def _begin(self) -> None:
        self._next = 0
        super()._begin()


def story(seed: int, kind: type[Merge] = Merge) -> dict[str, Any]:
    rng = random.Random(seed)
    queues = rng.randint(1, 4)
    starts = tuple(rng.choice((0, 0, 7, 1000)) for _ in range(queues))
    growing = frozenset((f"t{number}", 0) for number in range(queues) if rng.random() < 0.8)
    merge = kind(starts, growing)
    steps: list[dict[str, Any]] = []
    log: list[str] = []
    while len(steps) < 30:
        match rng.randrange(5):
            case 0 | 1:
                log.append(_record(rng, merge))
                steps.append(_follow(merge, log, len(log) - 1))
            case 2:
                limit = rng.choice((1, 2, 5, 50))
                inputs = merge.take(limit)
                taken = [[one.queue, one.offset, one.sn, one.skipped] for one in inputs]
                steps.append({"do": "take", "inputs": taken, "ended": len(taken) < limit})
            case 3:
                steps.append({"do": "place", "place": _place(merge.position())})
            case 4:
                place = merge.position()
                steps.append({"do": "restart", "place": _place(place)})
                merge = kind.at(place, growing)
                steps += [_follow(merge, log, offset) for offset in range(place.order_offset, len(log))]
    return {"seed": seed, "starts": starts, "growing": sorted(growing), "steps": steps}


def test_the_stories_tell_of_growth() -> None:
    """Of added queues that are consumed, and of positions before, within and after the cut that adds them."""
    told = [story(seed) for seed in range(300)]
    steps = [step for one in told for step in one["steps"]]
    restarts = [step["place"] for step in steps if step["do"] == "restart"]
    assert sum(bool(place.get("added")) for place in restarts) > 50
    assert (
        sum(step["do"] == "follow" and step["counts"] and "added" in step["record"] for step in steps) > 200
    )
    grown = {
        one["seed"]
        for one in told
        for step in one["steps"]
        for taken in step.get("inputs", ())
        if taken[0] >= len(one["starts"])
    }
    assert len(grown) > 50


def _follow(merge: Merge, log: list[str], offset: int) -> dict[str, Any]:
    counts = merge.follow(offset, decode(log[offset].encode()))
    return {"do": "follow", "offset": offset, "record": log[offset], "counts": counts}


def _record(rng: random.Random, merge: Merge) -> str:
    accepted = merge.accepted
    queues = len(accepted.ends)
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            return encode(_cut(rng, accepted)).decode()
        case 4:
            return encode(Claim(max(0, accepted.epoch + rng.randint(-1, 2)), "leader")).decode()
        case 5 | 6 | 7 | 8:
            epoch = accepted.epoch if rng.random() < 0.9 else max(0, accepted.epoch - 1)
            version = accepted.version + 1 if rng.random() < 0.9 else accepted.version
            runs = tuple(
                (
                    rng.randrange(queues + (rng.random() < 0.05)),
                    rng.randint(0 if rng.random() < 0.05 else 1, 4),
                )
                for _ in range(rng.randrange(4))
            )
            return encode(Order(epoch, version, runs)).decode()
        case 9 | 10:
            queue = rng.randrange(queues)
            at = merge.inputs[queue] if queue < len(merge.inputs) else 0
            return encode(Skip(queue, max(0, at + rng.randint(-2, 6)), "poison")).decode()
    return rng.choice(_GARBAGE)


def _cut(rng: random.Random, accepted: Acceptance) -> Cut:
    """Of a generator that knows the list of added queues, part of it, more than it, or another one."""
    added = list(accepted.added)
    match rng.randrange(8):
        case 0 | 1 | 2:
            topics = accepted.queues + (rng.random() < 0.05)
            lowest = 0 if rng.random() < 0.05 else 1
            added += [(f"t{rng.randrange(topics)}", rng.randint(lowest, 9)) for _ in range(rng.randint(1, 2))]
        case 3:
            added = added[: rng.randint(0, len(added))]
        case 4:
            rng.shuffle(added)
    before = accepted.ends + (0,) * len(added)
    ends = tuple(max(0, end + rng.randint(-2, 5)) for end in before[: accepted.queues + len(added)])
    return Cut(ends if rng.random() < 0.95 else ends[1:], "generator", tuple(added))


def _place(position: Position) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(position)
    fields["skips"] = [number for skip in position.skips for number in skip]
    if not position.added:
        del fields["added"]
    return fields
