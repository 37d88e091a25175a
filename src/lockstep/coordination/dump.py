"""What a data folder holds, in lines for people (`lockstep coord dump`). It is read from a copy of the log, so
that a running server is not disturbed and a torn end is shown as recovery would see it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lockstep.coordination import transactions
from lockstep.coordination.snapshots import SnapshotStore
from lockstep.coordination.transactions import SessionOpened
from lockstep.coordination.zab.records import RECORD, Logged
from lockstep.errors import UsageError
from lockstep.protocol.storage import History


def lines(folder: Path, *, with_tree: bool = False) -> Iterator[str]:
    if not (folder / "server.json").is_file():
        raise UsageError(f"{folder} is not the data folder of a server", hint="name the folder of --data")
    yield f"server {(folder / 'server.json').read_text()}"
    store = SnapshotStore.peek(folder / "snapshots")
    snapshots = sorted((folder / "snapshots").glob("snapshot.*"))
    for path in snapshots:
        if path.suffix == ".new":
            continue
        tree = store.load(path.name.encode())
        yield f"{path.name}: zxid {tree.last_zxid:#x}, {len(tree.nodes)} nodes, {len(tree.sessions)} sessions"
        if with_tree and path == snapshots[-1]:
            for name, node in tree.nodes.items():
                yield f"  {name} version {node.version} owner {node.owner & (1 << 64) - 1:#x} {node.data!r}"
    yield from _log(folder / "log")


def _log(folder: Path) -> Iterator[str]:
    decoder: msgspec.msgpack.Decoder[RECORD] = msgspec.msgpack.Decoder(RECORD)
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copy(folder / "history", Path(temporary) / "history")
        history = History(Path(temporary))
        try:
            for encoded in history.recovered:
                record = decoder.decode(encoded)
                if not isinstance(record, Logged):
                    yield repr(record)
                    continue
                for index, payload in enumerate(record.txns):
                    transaction = transactions.decode(payload)
                    operation = transaction.operation
                    if isinstance(operation, SessionOpened):  # whoever knows the password can take it over
                        operation = msgspec.structs.replace(operation, password=b"...")
                    yield (
                        f"{record.zxid + index:#x} session {transaction.session & (1 << 64) - 1:#x} "
                        f"time {transaction.time} {operation!r}"
                    )
        finally:
            history.close()
