"""The wire: bytes of a client that we did not write, and bytes of nobody."""

import random

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE
from solo_service import Caller, Solo

from lockstep.coordination import fuzz
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

INPUTS = 20_000
"""A slice; `lockstep coord fuzz` runs a million."""

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
    outcomes = fuzz.run(INPUTS)
    for name, outcome in outcomes.items():
        assert outcome["refused"] or "sasl" in name or outcome["accepted"], name
    assert sum(outcome["refused"] for outcome in outcomes.values()) > INPUTS // 4
    assert sum(outcome["accepted"] for outcome in outcomes.values()) > INPUTS // 20


def test_the_fuzzer_finds_a_decoder_that_trusts_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a string's length is believed, so that reading goes past the frame."""

    def trusting(reader: Reader) -> bytes:
        length = reader.int32()
        at, reader._at = reader._at, reader._at + length
        return bytes(reader._bytes[i] for i in range(at, at + min(length, 1000)))

    monkeypatch.setattr(Reader, "buffer", trusting)
    with pytest.raises(fuzz.Finding):
        fuzz.run(INPUTS)


def test_no_byte_sequence_breaks_a_server() -> None:
    """The same bytes as frames of live sessions: the server answers or closes, and still serves others."""
    chance = random.Random(7)
    solo = Solo()
    witness = Caller(solo)
    witness.create("/witness", b"here")
    samples = tuple(SAMPLES.values())
    ops = [int(op) for op in Op]
    caller = Caller(solo)
    for number in range(INPUTS // 4):
        frame = chance.randbytes(4) + chance.choice(ops).to_bytes(4, "big", signed=True)
        frame = frame + fuzz.damaged(chance, samples) if chance.random() < 0.9 else chance.randbytes(6)
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
