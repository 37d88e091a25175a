"""Fuzzing of every decoder that reads bytes of somebody else: clients, other servers, the disk.

Each decoder promises to return or to raise its own error, for any bytes. Inputs are random, or a valid
sample with a few bytes damaged, cut or repeated; one seed gives the same inputs again.
`lockstep coord fuzz` runs a million, the tests a slice.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from lockstep.coordination import network, transactions
from lockstep.coordination.leadership import Forward, decode_forward, encode_forward
from lockstep.coordination.snapshots import DamagedSnapshot, encode_chunks, read_chunks
from lockstep.coordination.transactions import Created, MultiDone, SessionOpened, Submission, Transaction
from lockstep.coordination.tree import OPEN_ACL, Tree
from lockstep.coordination.wire.codes import Mode, Op
from lockstep.coordination.wire.jute import BadFrame, Reader, pack_buffer, pack_int, pack_string
from lockstep.coordination.wire.records import (
    Connect,
    Create,
    SetWatches,
    decode_connect,
    decode_connect_reply,
    decode_request,
    encode_connect,
    pack_create,
    pack_multi,
    pack_set_watches,
    read_stat,
)
from lockstep.coordination.zab.messages import MESSAGE, CnxReady, FollowerInfo, Proposal, Quorum
from lockstep.coordination.zab.records import RECORD, Epochs, Logged

_pack = msgspec.msgpack.encode


class Decoder(Struct, frozen=True):
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    samples: tuple[bytes, ...]


class Finding(Exception):
    """A decoder did something else than to return or to refuse."""

    def __init__(self, name: str, data: bytes, error: BaseException) -> None:
        super().__init__(f"{name} raised {error!r} for {data.hex()}")
        self.data = data


def run(
    inputs: int, seed: int = 1, *, progress: Callable[[int], None] | None = None
) -> dict[str, Counter[str]]:
    """Feed `inputs` byte strings to the decoders in turn; how often each accepted and refused."""
    chance = random.Random(seed)
    decoders = all_decoders()
    outcomes = {name: Counter[str]() for name in decoders}
    names = list(decoders)
    for number in range(inputs):
        name = names[number % len(names)]
        decoder = decoders[name]
        data = damaged(chance, decoder.samples)
        try:
            decoder.decode(data)
            outcomes[name]["accepted"] += 1
        except decoder.errors:
            outcomes[name]["refused"] += 1
        except BaseException as error:
            raise Finding(name, data, error) from error
        if progress is not None and number % 1000 == 999:
            progress(1000)
    return outcomes


def damaged(chance: random.Random, samples: tuple[bytes, ...]) -> bytes:
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(80))
    data = bytearray(chance.choice(samples))
    for _ in range(chance.randrange(5)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0 if at < len(data):
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                data[at:at] = data[at : at + chance.randrange(1, 17)]
    return bytes(data)


def all_decoders() -> dict[str, Decoder]:
    path = pack_string("/a/b")
    create = pack_create(Create("/a", b"data", OPEN_ACL, Mode.EPHEMERAL))
    multi = pack_multi([(Op.CREATE, create), (Op.DELETE, path + pack_int(1))])
    watches = pack_set_watches(SetWatches(1, ["/a"], ["/b"], ["/c"], ["/d"], ["/e"]))
    setting, auth = (
        path + pack_buffer(b"data") + pack_int(-1),
        pack_int(0) + path + pack_buffer(b"bob:secret"),
    )
    short = (path + pack_int(3), path + b"\1", path, b"")
    bodies = (create, create + bytes(8), multi, watches, setting, auth, *short)
    decoders = {
        f"request {op.name.lower()}": Decoder(_request(op), (BadFrame,), bodies)
        for op in Op
        if op not in (Op.NOTIFICATION, Op.CREATE_SESSION, Op.ERROR)
    }
    connect = encode_connect(Connect(0, 1, 2, 3, bytes(16), False, True))[4:]
    decoders["connect"] = Decoder(decode_connect, (BadFrame,), (connect,))
    decoders["connect reply"] = Decoder(decode_connect_reply, (BadFrame,), (connect,))
    decoders["stat"] = Decoder(lambda data: read_stat(Reader(data)), (BadFrame,), (bytes(68),))
    created = Created("/a", b"data", OPEN_ACL, 0, 1)
    txns = tuple(
        transactions.encode(Transaction(1, 2, 3, 4, operation))
        for operation in (created, MultiDone((created,)), SessionOpened(1000, bytes(16)))
    )
    refused = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
    decoders["transaction"] = Decoder(transactions.decode, refused, txns)
    forward = encode_forward(Forward((1,), (2,), (Submission(1, 2, 3, b"body", (("ip", "::1"),)),)))
    decoders["forward"] = Decoder(decode_forward, refused, (forward,))
    messages = (CnxReady(1), Quorum(1, 2, Proposal(3, txns)), Quorum(1, 0, FollowerInfo(0, True)))
    decoders["message"] = Decoder(_decoder(MESSAGE), refused, tuple(map(_pack, messages)))
    decoders["record"] = Decoder(
        _decoder(RECORD), refused, tuple(map(_pack, (Logged(1, txns), Epochs(1, 1))))
    )
    greeting = network.Greeting("quorum", "e", 1, 2, 3, bytes(16))
    decoders["greeting"] = Decoder(
        network.decode_hello, refused, (_pack(greeting), _pack(network.Proof(b"x")))
    )
    tree = Tree()
    tree.apply(1, Transaction(1, 1, 3, 4, SessionOpened(1000, bytes(16))))
    tree.apply(2, Transaction(1, 2, 3, 4, created))
    snapshot = b"".join(encode_chunks(tree.snapshot()))
    decoders["snapshot"] = Decoder(_read_snapshot, (DamagedSnapshot,), (snapshot,))
    return decoders


def _request(op: Op) -> Callable[[bytes], object]:
    return lambda data: decode_request(op, Reader(data))


def _decoder(kind: Any) -> Callable[[bytes], object]:
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)
    return decoder.decode


def _read_snapshot(data: bytes) -> Iterable[bytes]:
    return list(read_chunks(BytesIO(data), Path("fuzz")))
