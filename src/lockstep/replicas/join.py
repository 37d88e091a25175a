"""A site joins a run that goes on: it takes the checkpoint of another site instead of replaying the whole input.

That is any site that has committed nothing itself: a new one, a late one, one whose folder was removed, one that
died before its first commit. What it leaves out by that was written by others. Whoever compares the sites'
outputs has to know it, so it is written down before the site writes anything (`copied.json`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.observe.logger import get_logger
from lockstep.replicas.layout import ProcessFolder, RunFolder, read_json, write_json
from lockstep.spark import checkpoints
from lockstep.spark.checkpoints import Copied
from lockstep.spark.identity import NO_SHARD
from lockstep.spark.position import committed

logger = get_logger(__name__)


def join(
    run: RunFolder, site: str, engines: Mapping[str, str], copying: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Copy what is missing; where from, by stage. `engines`: of each stage, by its name.

    `copying` is called before it begins: a large state takes a while.
    """
    own = run.site(site)
    joined: dict[str, Any] = {}
    for stage, engine in engines.items():

        def note(copied: Copied, stage: str = stage, engine: str = engine) -> None:
            joined[stage] = _told(copied, engine)
            write_json(own.copied, {**(read_json(own.copied) or {}), **joined})

        others = [one.checkpoint_of(stage) for name, one in run.all_sites().items() if name != site]
        if committed(own.checkpoint_of(stage)) is None and any(committed(one) for one in others):
            copying()
        if checkpoints.take(own.checkpoint_of(stage), others, note) is not None:
            logger.info("%s begins where %s is: %s", site, joined[stage]["from"], joined[stage]["begins"])
    return joined


def begins(folder: ProcessFolder, stage: str) -> dict[int, int]:
    """By shard, the first `_sn` (in micro-batch: batch) of what a site that joined wrote; empty if it did not."""
    noted = (read_json(folder.copied) or {}).get(stage) or {}
    return {int(shard): int(first) for shard, first in noted.get("begins", {}).items()}


def _told(copied: Copied, engine: str) -> dict[str, Any]:
    if engine == "microbatch":
        first = {NO_SHARD: copied.batch + 1}
    else:
        first = {shard: sn for one in copied.positions for shard, sn in one.upcoming.items()}
    begins = {str(shard): number for shard, number in first.items()}
    return {"from": copied.source.parent.name, "batch": copied.batch, "begins": begins}
