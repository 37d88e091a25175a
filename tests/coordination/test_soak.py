"""What the soak bench counts as a write beside a snapshot."""

from array import array
from pathlib import Path

from lockstep.bench.coordination_soak import Course, _apart, is_writing


def test_a_write_counts_as_beside_a_snapshot_if_any_part_of_it_was() -> None:
    course = Course(snapshots=[(10.0, 11.0), (20.0, 21.0)])
    writes = {
        "before": (9.9, 50.0),
        "into the first": (10.1, 500.0),
        "after, begun within": (11.2, 300.0),
        "after": (11.2, 100.0),
        "within the second": (20.5, 1.0),
        "long after": (30.0, 2.0),
    }
    course.done_at = array("d", [done for done, _ in writes.values()])
    course.took_ms = array("f", [took for _, took in writes.values()])
    inside, outside = _apart(course)
    assert inside == [500.0, 300.0, 1.0]
    assert outside == [50.0, 100.0, 2.0]


def test_a_snapshot_is_under_way_only_while_it_has_its_first_name(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
        (folder / "snapshot.0000000000000001").touch()
    assert not is_writing(folders)
    draft = folders[1] / "snapshot.0000000000000002.new"
    draft.touch()
    assert is_writing(folders)
    draft.rename(draft.with_suffix(""))
    assert not is_writing(folders)
