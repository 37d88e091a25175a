"""A server's durable records: what is on its disk or on the way there, in order, and what may be dropped.

The machine asks for records to be written (`zab.records`); many share one write (`protocol.commit`). Once a
checkpoint is durable, everything before it is dropped but the transactions that reach beyond it
(`zab.interface`, rule 13). The records that are kept are known here too, so that a file can be written anew
without reading the old one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lockstep.coordination.zab.records import RECORD, Checkpointed, Logged, Truncated
from lockstep.errors import LockstepError
from lockstep.protocol.commit import GroupCommit
from lockstep.protocol.machine import Token
from lockstep.protocol.storage import CorruptHistoryError, History

_COMPACTED: Final = "journal:compacted"
_decoder: "msgspec.msgpack.Decoder[RECORD]" = msgspec.msgpack.Decoder(RECORD)
_encode = msgspec.msgpack.Encoder().encode


class Journal:
    """`persisted` gets the token of each record once it is durable, in order; `fail` ends everything."""

    def __init__(
        self,
        history: History,
        *,
        persisted: Callable[[Token], None],
        fail: Callable[[LockstepError], None],
        pressure: Callable[[bool], None],
    ) -> None:
        self.records: list[RECORD] = [_recovered(record, history.folder) for record in history.recovered]
        history.recovered.clear()
        self.commit = GroupCommit(history, confirm=self._confirmed, fail=fail, pressure=pressure)
        self._persisted = persisted
        self._checkpoints: dict[Token, Checkpointed] = {}

    def persist(self, record: RECORD, token: Token) -> None:
        match record:
            case Truncated(zxid):
                self.records = [kept for part in self.records if (kept := _cut(part, zxid)) is not None]
            case Checkpointed():
                self._checkpoints[token] = record
        self.records.append(record)
        self.commit.persist(_encode(record), token)

    def replace(self, records: Sequence[RECORD], token: Token) -> None:
        """All that was before is void."""
        self.records = list(records)
        self.commit.compact(tuple(map(_encode, records)), token)

    def _confirmed(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token == _COMPACTED:
                continue
            self._persisted(token)
            checkpoint = self._checkpoints.pop(token, None)
            if checkpoint is not None:
                self._compact(checkpoint)

    def _compact(self, checkpoint: Checkpointed) -> None:
        """Drop what the checkpoint made superfluous."""
        at = next((i for i, record in enumerate(self.records) if record is checkpoint), -1)
        if at < 0:
            return  # the machine has replaced the whole history meanwhile
        beyond = [r for r in self.records[:at] if isinstance(r, Logged) and _end(r) > checkpoint.zxid]
        self.replace(beyond + self.records[at:], _COMPACTED)


def _end(record: Logged) -> int:
    return record.zxid + len(record.txns) - 1


def _cut(record: RECORD, zxid: int) -> RECORD | None:
    """What is left of a record when every transaction after `zxid` is void."""
    if not isinstance(record, Logged) or _end(record) <= zxid:
        return record
    if record.zxid > zxid:
        return None
    return Logged(record.zxid, record.txns[: zxid - record.zxid + 1])


def _recovered(record: bytes, folder: Path) -> RECORD:
    try:
        return _decoder.decode(record)
    except msgspec.MsgspecError as error:
        raise CorruptHistoryError(
            f"{folder} holds a record that this version does not know: {error}",
            hint="it was written by a newer version, or is not a data folder of a server",
        ) from error
