"""Promises of the digests: equal sites never look different, a difference is found and named."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.replicas import digest
from lockstep.replicas.digest import Comparator, Divergence, Sighting, Suspicion, locate
from lockstep.spark.identity import MICROBATCH, REALTIME, Identity, encode

SPAN = 8


def written(site: str, count: int, reducers: int = 2, rows: int = 2) -> list[Sighting]:
    """What a site writes for the inputs 0..count-1 of one shard: one partition, `rows` rows each."""
    return [
        Sighting(site, 0, -1, encode(Identity(REALTIME, 0, sn % reducers, sn, k)), b"key", b"%d-%d" % (sn, k))
        for sn in range(count)
        for k in range(rows)
    ]


def merged(logs: list[list[Sighting]], choose: random.Random) -> list[Sighting]:
    """One log out of the sites', each in its own order, with offsets."""
    pending = [list(log) for log in logs if log]
    log: list[Sighting] = []
    while pending:
        queue = choose.choice(pending)
        log.append(replace(queue.pop(0), offset=len(log)))
        pending = [one for one in pending if one]
    return log


def with_replays(log: list[Sighting], choose: random.Random) -> list[Sighting]:
    """A site that dies now and then and writes a part again."""
    result: list[Sighting] = []
    at = 0
    while at < len(log):
        result.append(log[at])
        at += 1
        if choose.random() < 0.05:
            at = max(0, at - choose.randrange(20))
    return result


def suspicions(log: list[Sighting], **more: bool) -> list[Suspicion]:
    comparator = Comparator(SPAN, **more)
    found = [suspicion for record in log for suspicion in comparator.add(record)]
    return found + comparator.settle()


def first_divergence(log: list[Sighting]) -> Divergence | None:
    located = [d for s in suspicions(log) if (d := locate(s, log[s.first_offset : s.last_offset + 1]))]
    return min(located, key=lambda d: (d.identity.a, d.identity.b), default=None)


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(0, 100), st.integers(1, 3), st.integers(1, 3))
def test_equal_sites_never_look_different(seed: int, count: int, sites: int, reducers: int) -> None:
    choose = random.Random(seed)
    logs = [with_replays(written(f"site-{s}", count, reducers), choose) for s in range(sites)]
    assert suspicions(merged(logs, choose)) == []


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(20, 100), st.sampled_from(["value", "key", "missing"]))
def test_a_difference_is_named_with_both_records(seed: int, count: int, how: str) -> None:
    choose = random.Random(seed)
    one, two = written("site-1", count), written("site-2", count)
    victims = sorted(choose.sample(range(len(two) - 8), 2))  # later ones differ too: the first is named
    first = two[victims[0]]
    for index in reversed(victims):
        match how:
            case "value":
                two[index] = replace(two[index], value=b"other")
            case "key":
                two[index] = replace(two[index], key=None)
            case "missing":
                del two[index]
    log = merged([with_replays(one, choose), two], choose)
    found = first_divergence(log)
    assert found is not None
    assert encode(found.identity) == first.identity
    assert found.sites == ("site-1", "site-2")
    mine, other = found.records
    assert mine is not None
    assert mine.value == first.value
    assert (other is None) == (how == "missing")
    assert f"_sn {found.identity.a}" in str(found)


def test_a_site_that_joins_from_a_copied_checkpoint_is_not_taken_for_different() -> None:
    one = written("site-1", 100)
    late = [r for r in written("site-2", 100) if int.from_bytes(r.identity[10:18], "big") >= 37]
    assert suspicions(merged([one, late], random.Random(1))) == []
    late[20] = replace(late[20], value=b"other")
    assert suspicions(merged([one, late], random.Random(1))), "but what it writes later is compared"


def test_a_watch_that_joins_in_the_middle_is_not_fooled() -> None:
    log = merged([written("site-1", 100), written("site-2", 100)], random.Random(2))
    for cut in range(0, len(log), 7):
        rest = [replace(record, offset=offset) for offset, record in enumerate(log[cut:])]
        assert suspicions(rest, from_start=False) == []
    # The same cuts do fool a watch that believes that it saw everything: the flag is needed.
    assert any(suspicions([replace(r, offset=i) for i, r in enumerate(log[cut:])]) for cut in range(1, 60))


def test_batches_of_the_micro_batch_engine_are_compared_too() -> None:
    def batch(site: str, value: bytes) -> list[Sighting]:
        rows = [encode(Identity(MICROBATCH, -1, 0, number, 0)) for number in range(30)]
        return [Sighting(site, 0, i, row, None, value if i == 9 else b"same") for i, row in enumerate(rows)]

    found = first_divergence(merged([batch("site-1", b"x"), batch("site-2", b"y")], random.Random(3)))
    assert found is not None
    assert "batch 9" in str(found)


def test_a_lagging_site_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MAX_OPEN_RANGES", 10)
    comparator = Comparator(SPAN)
    comparator.add(written("site-2", 1)[0])
    for offset, record in enumerate(written("site-1", 1000)):
        comparator.add(replace(record, offset=offset))
    assert comparator.dropped > 0
    assert comparator._open <= 12


def test_hash_tells_null_from_empty_and_key_from_value() -> None:
    identity = encode(Identity(REALTIME, 0, 0, 0, 0))
    shapes = [(None, b"a"), (b"", b"a"), (b"a", None), (b"a", b""), (b"a", b"a"), (b"+1:a", b"")]
    assert len({Sighting("s", 0, 0, identity, key, value).hash for key, value in shapes}) == len(shapes)
