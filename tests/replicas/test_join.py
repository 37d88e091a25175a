"""A site that joins with a copy: what it begins with, and that nobody takes its beginning for a difference."""

import json
import uuid
from pathlib import Path

from lockstep.replicas.digest import Comparator, Sighting
from lockstep.replicas.join import begins, join
from lockstep.replicas.layout import RunFolder
from lockstep.spark import identity, position


def commit(checkpoint: Path, batch: int, at: position.Position) -> None:
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("v1\n{}\n" + position.encode(at))
    (checkpoint / "commits" / str(batch)).write_text("v2\n" + json.dumps({"nextBatchWatermarkMs": 0}))


def test_a_new_site_begins_every_stage_where_another_is(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    first, second = run.site("site-1"), run.site("site-2")
    second.path.mkdir(parents=True)
    commit(first.checkpoint_of("tag"), 0, position.Position("a", -1, {0: 500, 1: 700}))
    commit(first.checkpoint, 0, position.Position("b", 0, {0: 90}))
    joined = join(run, "site-2", {"tag": "realtime", "": "microbatch"})
    assert {stage: one["from"] for stage, one in joined.items()} == {"tag": "site-1", "": "site-1"}
    assert begins(second, "tag") == {0: 500, 1: 700}
    assert begins(second, "") == {identity.NO_SHARD: 1}
    assert begins(first, "") == {}
    assert join(run, "site-2", {"tag": "realtime", "": "microbatch"}) == {}, "it has its own now"
    assert begins(second, "tag") == {0: 500, 1: 700}


def sighting(site: str, sn: int, value: bytes = b"v") -> Sighting:
    name = identity.encode(identity.Identity(identity.REALTIME, 0, 0, sn, 0))
    return Sighting(site, 0, uuid.uuid4().int % 1000, name, b"k", value)


def compared(begin: int, *, told: bool, wrong: int = -1) -> tuple[int, int]:
    """(suspicions, ranges compared) of 100 outputs, when site-2 wrote only those from `begin` on."""
    comparator = Comparator(span=10)
    found = []
    for sn in range(100):
        found += comparator.add(sighting("site-1", sn))
    if told:
        comparator.joined("site-2", {0: begin})
    for sn in range(begin, 100):
        found += comparator.add(sighting("site-2", sn, b"other" if sn == wrong else b"v"))
    found += comparator.settle()
    return len(found), comparator.compared


def test_what_a_site_left_out_by_joining_is_no_difference() -> None:
    assert compared(5, told=False)[0] > 0, "this is what it would look like"
    assert compared(5, told=True)[0] == 0
    assert compared(55, told=True)[0] == 0


def test_what_a_site_wrote_after_joining_is_compared() -> None:
    assert compared(55, told=True)[1] >= 4
    assert compared(55, told=True, wrong=77)[0] == 1


def test_a_site_that_wrote_before_it_joined_anew_is_not_blamed_for_the_gap() -> None:
    comparator = Comparator(span=10)
    found = []
    for sn in range(23):
        for site in ("site-1", "site-2"):
            found += comparator.add(sighting(site, sn))
    for sn in range(23, 100):
        found += comparator.add(sighting("site-1", sn))
    comparator.joined("site-2", {0: 55})
    for sn in range(55, 100):
        found += comparator.add(sighting("site-2", sn))
    assert found + comparator.settle() == []
    assert comparator.compared >= 6
