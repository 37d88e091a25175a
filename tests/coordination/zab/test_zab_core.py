"""What the others' memory says of a server may not be more than what its disk holds (DEP, section 3.3.2)."""

from lockstep.coordination.zab.core import Core
from lockstep.coordination.zab.records import Logged
from lockstep.coordination.zab.settings import variant
from lockstep.protocol.machine import Compact, Persist

ZXID = (7 << 32) + 1


def core() -> Core:
    return Core(1, (1, 2, 3), variant("rtzk"))


def asked(one: Core) -> int:
    """The token of the last write."""
    return max(int(str(effect.token)) for effect in one.out if isinstance(effect, Persist | Compact))


def test_the_table_learns_of_an_epoch_when_its_history_is_durable() -> None:
    one = core()
    one.log(ZXID, (b"txn",))
    one.enter(8)
    assert one.current == 8, "it votes with it at once"
    assert one.table.current[1] == 0, "a crash now would lose the transaction, and the epoch must go with it"
    one.persisted(asked(one))
    assert one.table.current[1] == 8


def test_a_durable_history_is_told_at_once() -> None:
    one = core()
    one.enter(8)
    assert one.table.current[1] == 8


def test_the_table_learns_of_a_snapshots_epoch_when_it_is_durable() -> None:
    one = core()
    done: list[bool] = []
    one.restore(ZXID, b"snapshot", [Logged(ZXID + 1, (b"txn",))], 8, lambda: done.append(True))
    assert (one.current, one.table.current[1], done) == (8, 0, [])
    one.persisted(asked(one))
    assert (one.table.current[1], done) == (8, [True])
