"""The impatient ZooKeeper client of the Kafka experiment is Kafka's own with one constant changed."""

import struct

import pytest

from lockstep.bench.coordination_kafka_cluster import with_long
from lockstep.errors import LockstepError


def classfile(*longs: int) -> bytes:
    """The beginning of a class: a text, a reference, these long constants, and what follows them."""
    pool = b"\x01" + struct.pack(">H", 8) + struct.pack(">q", 1000)  # text that looks like the constant
    pool += b"\x07" + struct.pack(">H", 1)
    pool += b"".join(b"\x05" + struct.pack(">q", value) for value in longs)
    count = 1 + 2 + 2 * len(longs)
    return struct.pack(">IHHH", 0xCAFEBABE, 0, 52, count) + pool + b"the code" + struct.pack(">q", 1000)


def test_the_one_constant_changes_and_nothing_else() -> None:
    assert with_long(classfile(7, 1000, 1_000_000), 1000, 50) == classfile(7, 50, 1_000_000)


@pytest.mark.parametrize("longs", [(7,), (1000, 1000)])
def test_a_client_that_is_built_otherwise_is_refused(longs: tuple[int, ...]) -> None:
    with pytest.raises(LockstepError, match="not one"):
        with_long(classfile(*longs), 1000, 50)
