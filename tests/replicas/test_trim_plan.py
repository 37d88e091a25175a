"""What a run may trim: nothing that any site, in any of its stages, may go back to."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from lockstep.log.memory import MemoryLog
from lockstep.order.growth import Trimmed, read_trimmed
from lockstep.replicas.layout import RunFolder, write_json
from lockstep.replicas.manifest import InputTopic, Manifest, OutputTopic
from lockstep.replicas.settings import RunSettings
from lockstep.replicas.trim_plan import Plan, Reader, Readers, SiteCheckpoints, plan, readers_of
from lockstep.replicas.trim_watch import TrimWatch
from lockstep.spark import position
from lockstep.spark.inputs import broadcast
from lockstep.spark.pipeline import pipeline
from lockstep.spark.position import Deduplicated, Place, Position

READERS = Readers(
    (
        Reader("tag", "events+rules!", 0, 0, (("events", 0), ("rules", 0))),
        Reader("", "tagged~", 0, None, (("tagged", 0),)),
    ),
    frozenset({"tagged"}),
)


def place(order_offset: int, *, done: int = 0, inputs: tuple[int, ...] = (0, 0)) -> Place:
    return Place(order_offset, done, inputs, sum(inputs), 0, inputs, 0, 0, (1, 9))


def site(name: str, order_offset: int, stage_offset: int, *, catching_up: bool = False) -> SiteCheckpoints:
    first = Position("events+rules!", -1, {0: place(order_offset, done=1)}, "liverobin")
    second = Position("tagged~", -1, {0: Deduplicated(stage_offset, ({"0/0": (4, 0)},))})
    return SiteCheckpoints(name, {"tag": [first], "": [second]}, catching_up)


def test_the_site_that_is_furthest_behind_decides_stage_by_stage() -> None:
    made = plan(READERS, [site("site-1", 50, 7), site("site-2", 40, 9)])
    assert made.orders[0].order_offset == 40
    assert (made.orders[0].done, made.orders[0].skips) == (0, ((1, 9),))
    assert made.topics == {("tagged", 0): 7}


def test_nothing_goes_while_a_site_catches_up() -> None:
    assert plan(READERS, [site("site-1", 50, 7), site("site-2", 40, 9, catching_up=True)]) == Plan()


def test_nothing_of_a_stage_goes_while_a_site_has_no_checkpoint_of_it() -> None:
    new = SiteCheckpoints("site-2", {"tag": site("site-2", 40, 9).stages["tag"], "": None})
    made = plan(READERS, [site("site-1", 50, 7), new])
    assert made.orders[0].order_offset == 40
    assert made.topics == {}


def test_nothing_goes_without_sites() -> None:
    assert plan(READERS, []) == Plan()


def test_a_stage_topic_with_two_readers_waits_for_both() -> None:
    """The second reader merges it with another topic, as its queue number 1."""
    merged = Reader("other", "more+tagged~", 0, 1, (("more", 0), ("tagged", 0)))
    readers = Readers((*READERS.readers, merged), READERS.stage_topics)
    one = site("site-1", 50, 7)
    assert plan(readers, [one]).topics == {}
    at = Deduplicated(place(3, inputs=(100, 5)), (None, {}))
    more = {**one.stages, "other": [Position("more+tagged~", -1, {0: at}, "liverobin")]}
    made = plan(readers, [SiteCheckpoints("site-1", more)])
    assert made.topics == {("tagged", 0): 5}, "and the users' topic stays"
    assert made.orders[1].order_offset == 3


def test_an_input_that_is_used_twice_is_needed_from_the_earlier_place_on() -> None:
    twice = [Position("events+rules!", -1, {0: place(at)}, "liverobin") for at in (50, 30)]
    one = SiteCheckpoints("site-1", {"tag": twice, "": None})
    assert plan(READERS, [one]).orders[0].order_offset == 30


def test_what_is_needed_again_is_kept() -> None:
    before, now = plan(READERS, [site("s", 50, 7)]), plan(READERS, [site("s", 40, 9)])
    assert before.still(now).orders[0].order_offset == 40
    assert before.still(now).topics == {("tagged", 0): 7}
    assert before.still(Plan()) == Plan()


def test_readers_are_named_as_in_the_checkpoints() -> None:
    @pipeline(inputs=[("events", broadcast("rules"))], output="tagged")
    def tag(rows: object) -> object:
        return rows

    @pipeline(inputs=["tagged"], output="out")
    def count(rows: object) -> object:
        return rows

    def frozen(run: str, output: str, order: str, inputs: dict[str, int]) -> Manifest:
        return Manifest(
            version=2,
            run=run,
            pipeline=run,
            fingerprint="",
            inputs=tuple(InputTopic(topic, count, "id", (0,) * count) for topic, count in inputs.items()),
            output=OutputTopic(output, 1),
            engine="auto",
            order=order,
            order_why="",
            created=0.0,
        )

    first = frozen("r.tag", "tagged", "liverobin", {"events": 2, "rules": 1})
    last = frozen("r", "out", "partition", {"tagged": 1})
    manifest = msgspec.structs.replace(last, stages=(first,), order_base=2)
    readers = readers_of(manifest, (tag, count))
    assert [(one.stage, one.input, one.shard, one.order_partition) for one in readers.readers] == [
        ("tag", "events+rules!", 0, 0),
        ("tag", "events+rules!", 1, 1),
        ("", "tagged~", 0, None),
    ]
    assert readers.readers[1].queues == (("events", 1), ("rules", 0))
    assert readers.anything
    assert not readers_of(frozen("r", "out", "partition", {"tagged": 1}), (count,)).anything


class Run:
    """A run folder whose sites a test moves on, and its topics."""

    def __init__(self, folder: Path, log: MemoryLog) -> None:
        self.folder = RunFolder(folder)
        self.settings = RunSettings("r", "none.py", "none", sites=2)
        self.log = log
        self.watch = TrimWatch(self.folder, log, READERS, None)

    def commit(self, site_name: str, batch: int, order_offset: int, state: str = "running") -> None:
        one = site(site_name, order_offset, order_offset // 2)
        for stage, positions in one.stages.items():
            checkpoint = self.folder.site(site_name).checkpoint_of(stage)
            for name in ("offsets", "commits"):
                (checkpoint / name).mkdir(parents=True, exist_ok=True)
            lines = [position.encode(at) for at in positions or ()]
            (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]))
            (checkpoint / "commits" / str(batch)).write_text("v2\n" + json.dumps({}))
        write_json(self.folder.site(site_name).status_file, {"state": state})

    async def first(self) -> tuple[int, int]:
        return (await self.log.first_offsets("r.order"))[0], (await self.log.first_offsets("tagged"))[0]


@pytest.fixture
def story(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Run `tell(run)` on a log with 100 records in each topic."""

    def play(tell) -> None:  # type: ignore[no-untyped-def]
        async def run() -> None:
            async with MemoryLog() as log:
                for topic in ("r.order", "tagged"):
                    await log.create_topic(topic)
                    for _ in range(100):
                        await log.append(topic, 0, b"x")
                await tell(Run(tmp_path, log))

        asyncio.run(run())

    return play


def test_what_was_behind_all_sites_at_two_looks_is_deleted(story) -> None:  # type: ignore[no-untyped-def]
    async def tell(run: Run) -> None:
        for name, offsets in {"site-1": (20, 30, 40), "site-2": (10, 24, 36)}.items():
            for batch, at in enumerate(offsets):
                run.commit(name, batch, at)
        await run.watch.step(run.settings)
        assert await run.first() == (0, 0), "first it only looks"
        run.commit("site-1", 3, 60)
        run.commit("site-2", 3, 60)
        await run.watch.step(run.settings)
        assert await run.first() == (24, 12), "one commit before the newest"
        assert run.watch.trimmed == {"r.order:0": 24, "tagged:0": 12}

    story(tell)


def test_a_site_that_catches_up_stops_the_trimming(story) -> None:  # type: ignore[no-untyped-def]
    async def tell(run: Run) -> None:
        for name in ("site-1", "site-2"):
            run.commit(name, 0, 20)
        await run.watch.step(run.settings)
        run.commit("site-2", 0, 20, state="catching up")
        for _ in range(3):
            await run.watch.step(run.settings)
        assert await run.first() == (0, 0)
        assert run.watch.waits == "waits for site-2"

    story(tell)


def test_a_site_of_old_that_comes_back_is_not_left_with_a_place_that_is_gone(story) -> None:  # type: ignore[no-untyped-def]
    async def tell(run: Run) -> None:
        for name, at in {"site-1": 50, "site-2": 50, "site-3": 10}.items():
            run.commit(name, 0, at)
        three = RunSettings("r", "none.py", "none", sites=3)
        await run.watch.step(run.settings)
        await run.watch.step(three)  # it came back in between: it counts again
        assert await run.first() == (10, 5)
        await run.watch.step(run.settings)
        await run.watch.step(run.settings)
        assert await run.first() == (50, 25)
        assert position.committed(run.folder.site("site-3").checkpoint) is None, "it will take a copy"

    story(tell)


def test_what_was_added_before_the_beginning_of_the_order_topic_is_noted_before_anything_is_deleted(
    story,
) -> None:  # type: ignore[no-untyped-def]
    async def tell(run: Run) -> None:
        for order_offset, added in ((20, ()), (30, (("events", 1),)), (40, (("events", 1), ("events", 2)))):
            at = msgspec.structs.replace(
                place(order_offset, inputs=(0,) * (2 + len(added))), added=added, skips=()
            )
            made = plan(
                READERS, [SiteCheckpoints("site-1", {"tag": [Position("events+rules!", -1, {0: at})]})]
            )
            assert made.orders[0].added == added
            await run.watch._delete("r.order", made)
            noted = {0: Trimmed(order_offset, added)} if added else {}
            assert read_trimmed(run.folder.trimmed) == noted
        await run.watch._delete(
            "r.order", Plan({0: msgspec.structs.replace(made.orders[0], order_offset=35)})
        )
        assert read_trimmed(run.folder.trimmed) == noted, "it never goes back"

    story(tell)
