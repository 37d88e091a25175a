"""The recovery of three servers from their leader's death, as a story, compared with the committed one.

After a change that is meant to change it: LOCKSTEP_GOLDEN=write pytest tests/coordination/zab/test_zab_golden.py,
then read the difference.
"""

import os
from pathlib import Path

import pytest
from zab_ensemble import Ensemble

from lockstep.coordination.zab.settings import VARIANTS, Variant, variant

GOLDEN = Path(__file__).parent / "golden"


def story(name: Variant) -> str:
    ensemble = Ensemble(3, variant(name))
    ensemble.start()
    leader = ensemble.settle()
    ensemble.propose(b"before")
    ensemble.run(0.1)
    crashed, first = ensemble.now, len(ensemble.sent)
    ensemble.crash(leader)
    ensemble.settle()
    ensemble.propose(b"after")
    ensemble.run(0.01)
    lines = [f"{name}: server {leader} leads and dies; milliseconds since then"]
    for sent in ensemble.sent[first:]:
        if sent.to != leader and sent.name != "Ping":
            text = repr(sent.body).split("(", 1)[1].removesuffix(")")
            lines.append(
                f"{(sent.at - crashed) * 1000:8.1f}  {sent.sender} -> {sent.to}  {sent.name}  {text}".rstrip()
            )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", VARIANTS)
def test_the_recovery_reads_like_the_committed_transcript(name: Variant) -> None:
    path = GOLDEN / f"recovery-{name}.txt"
    told = story(name)
    if os.environ.get("LOCKSTEP_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(told)
    assert told == path.read_text()
