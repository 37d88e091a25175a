"""The wire: bytes of a client that we did not write, and bytes of nobody."""

import os
import random

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE
from solo_service import Caller, Solo

from lockstep.coordination.wire.codes import Op
from lockstep.coordination.wire.jute import BadFrame, Reader
from lockstep.coordination.wire.records import (
    Check,
    Connect,
    Create,
    Delete,
    Multi,
    Read,
    SetAcl,
    SetData,
    decode_connect,
    decode_request,
    encode_connect,
)

INPUTS = int(os.environ.get("LOCKSTEP_FUZZ", "20000"))
"""A slice in the tests; `LOCKSTEP_FUZZ=1000000` runs the whole."""

SAMPLES: dict[Op, bytes] = {
    Op.CREATE: bytes(kazoo.Create("/a", b"data", OPEN_ACL_UNSAFE, 3).serialize()),
    Op.CREATE2: bytes(kazoo.Create2("/a", b"data", OPEN_ACL_UNSAFE, 0).serialize()),
    Op.DELETE: bytes(kazoo.Delete("/a", 7).serialize()),
    Op.EXISTS: bytes(kazoo.Exists("/a", None).serialize()),
    Op.GET_DATA: bytes(kazoo.GetData("/a", print).serialize()),
    Op.SET_DATA: bytes(kazoo.SetData("/a", None, -1).serialize()),
    Op.GET_ACL: bytes(kazoo.GetACL("/a").serialize()),
    Op.SET_ACL: bytes(kazoo.SetACL("/a", OPEN_ACL_UNSAFE, 2).serialize()),
    Op.GET_CHILDREN: bytes(kazoo.GetChildren("/a", None).serialize()),
    Op.GET_CHILDREN2: bytes(kazoo.GetChildren2("/a", None).serialize()),
    Op.SYNC: bytes(kazoo.Sync("/a").serialize()),
    Op.CHECK: bytes(kazoo.CheckVersion("/a", 1).serialize()),
    Op.MULTI: bytes(
        kazoo.Transaction(
            [kazoo.Create("/a", b"", OPEN_ACL_UNSAFE, 0), kazoo.CheckVersion("/b", 1)]
        ).serialize()
    ),
    Op.AUTH: bytes(kazoo.Auth(0, "digest", "user:secret").serialize()),
}


@pytest.mark.parametrize("op", SAMPLES)
def test_every_request_of_kazoo_is_read_as_it_was_meant(op: Op) -> None:
    request = decode_request(op, Reader(SAMPLES[op]))
    match request:
        case Create(path, data, acl, flags):
            assert (path, data, flags) == ("/a", b"data", 3 if op == Op.CREATE else 0)
            assert [(entry.perms, entry.scheme, entry.id) for entry in acl] == [(31, "world", "anyone")]
        case Delete(path, version):
            assert (path, version) == ("/a", 7)
        case SetData(path, data, version):
            assert (path, data, version) == ("/a", None, -1)
        case Check(path, version):
            assert (path, version) == ("/a", 1)
        case SetAcl(path, _, version):
            assert (path, version) == ("/a", 2)
        case Read(path, watch):
            assert (path, watch) == ("/a", op == Op.GET_DATA)
        case Multi(ops):
            assert [op for op, _ in ops] == [Op.CREATE, Op.CHECK]


def test_the_first_frame_of_kazoo_and_ours_are_read() -> None:
    theirs = decode_connect(bytes(kazoo.Connect(0, 5, 1000, 9, b"p" * 16, False).serialize()))
    assert theirs == Connect(0, 5, 1000, 9, b"p" * 16, False)
    ours = Connect(0, 5, 1000, 9, b"p" * 16, False, True)
    assert decode_connect(encode_connect(ours)[4:]) == ours


def test_no_byte_sequence_does_more_than_fail_to_decode() -> None:
    """Random bytes and damaged requests: a request, or `BadFrame`, and nothing else."""
    chance = random.Random(5)
    ops = [int(op) for op in Op]
    samples = list(SAMPLES.values())
    refused = 0
    for _ in range(INPUTS):
        body = _damaged(chance, samples)
        try:
            decode_request(chance.choice(ops), Reader(body))
        except BadFrame:
            refused += 1
        try:
            decode_connect(body)
        except BadFrame:
            refused += 1
    assert 0 < refused < 2 * INPUTS


def test_no_byte_sequence_breaks_a_server() -> None:
    """The same bytes as frames of live sessions: the server answers or closes, and still serves others."""
    chance = random.Random(7)
    solo = Solo()
    witness = Caller(solo)
    witness.create("/witness", b"here")
    samples = list(SAMPLES.values())
    ops = [int(op) for op in Op]
    caller = Caller(solo)
    for number in range(INPUTS // 4):
        frame = chance.randbytes(4) + chance.choice(ops).to_bytes(4, "big", signed=True)
        frame = frame + _damaged(chance, samples) if chance.random() < 0.9 else chance.randbytes(6)
        try:
            solo.service.on_frame(caller.client, frame)
        except BadFrame:
            solo.service.closed(caller.client)
        if number % 50 == 0:
            solo.commit()
            caller.port.frames.clear()
        if caller.client.is_closed or caller.port.is_closed:
            solo.commit()
            caller = Caller(solo)
    solo.commit()
    code, body = witness.get("/witness")
    assert (code, body.buffer()) == (0, b"here")


def _damaged(chance: random.Random, samples: list[bytes]) -> bytes:
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(64))
    body = bytearray(chance.choice(samples))
    for _ in range(chance.randrange(4)):
        body[chance.randrange(len(body))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(body[: chance.randrange(len(body) + 1)]) if chance.random() < 0.3 else bytes(body)
