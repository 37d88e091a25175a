"""Records of a run's seals topic that Python writes. The Java source folds them (`io.lockstep.source.Seals`)."""

import json

VERSION = 1


def skip(topic: str, shard: int, offset: int, reason: str) -> bytes:
    """Leave one input record out, on every site alike (design rule 3): the value of a record for the seals topic.

    It takes effect when a site starts. So append it only when no site got past the record, and none can.
    """
    fields = {
        "version": VERSION,
        "kind": "skip",
        "topic": topic,
        "shard": shard,
        "offset": offset,
        "reason": reason[:1000],
    }
    return json.dumps(fields).encode()
