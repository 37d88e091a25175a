"""The service of one server: clients on one side, the broadcast protocol on the other, no I/O of its own.

What clients are promised, and where it is kept:

1. Replies come in the order of the requests of a connection. Reads are answered from this server's tree at
   once, unless a write of the same connection is still under way: then they wait behind it (`Client.queue`).
2. A client hears of an event before it can read what the event is about: a transaction's events and replies
   leave in the order in which transactions are applied, on the same connection.
3. A write is sent to the leader once it is asked for, and again to a new leader if and only if it is known
   that no earlier attempt became part of the history: a server that follows a new leader has been given all
   of that history, and transactions name the request that caused them.
4. While there is no leader, connections stay open, reads are answered, writes wait. Only after
   `grace_ms` without a leader are clients sent elsewhere. Who comes from another server waits at the door.
"""

import hmac
import os
import time
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from lockstep.coordination import reads, results, transactions
from lockstep.coordination.clients import Client, Latency, Settings
from lockstep.coordination.leadership import Forward, Leadership, decode_forward, encode_forward
from lockstep.coordination.pending import Pending, PendingWrites, in_runs
from lockstep.coordination.preparation import CONNECTION_LOST
from lockstep.coordination.sessions import negotiate, new_session
from lockstep.coordination.throttle import Throttle
from lockstep.coordination.transactions import SessionClosed, SessionOpened, Transaction
from lockstep.coordination.tree import Applied, Tree
from lockstep.coordination.watches import WatchTable
from lockstep.coordination.wire.codes import WRITES, Code, Op
from lockstep.coordination.wire.jute import BadFrame, pack_string
from lockstep.coordination.wire.records import (
    REQUEST_HEADER,
    Connect,
    connect_reply,
    decode_connect,
    event_frame,
    reply,
)
from lockstep.coordination.zab.interface import (
    Command,
    Committed,
    Following,
    FromLeader,
    Leading,
    Looking,
    Propose,
    Request,
    ToLeader,
)
from lockstep.observe.logger import get_logger

logger = get_logger(__name__)

_NO_PASSWORD = bytes(16)


class Service:
    def __init__(
        self,
        settings: Settings,
        *,
        command: Callable[[Command], None],
        wake: Callable[[], None],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        """`command` speaks to the protocol machine, `wake` asks for `flush()` soon. `now_ms` is the time of
        day, which may jump; `steady_ms` never does, and all waiting follows it."""
        self.settings = settings
        self.tree = Tree()
        self.watches: WatchTable[Hashable] = WatchTable()
        self.clients: dict[Client, None] = {}
        self.role: Looking | Following | Leading = Looking("starting")
        self._by_session: dict[int, Client] = {}
        self._command = command
        self._wake = wake
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._leadership: Leadership | None = None
        self._has_served = False
        self._looking_since = steady_ms()
        self._session_counter = 0
        self._pending = PendingWrites(settings.server, settings.incarnation)
        self._throttle = Throttle(settings.limits, self._pending)
        self._attached: list[int] = []
        self._waiting_in: list[tuple[Client, Connect]] = []
        self._touched: set[int] = set()
        self._awake = False
        self.received = 0
        self.sent = 0
        self.applied = 0
        self.elections = 0
        self.latency = Latency()
        self.tree.set_config(settings.config_text)

    # The clients' side.

    def opened(self, client: Client) -> None:
        self.clients[client] = None

    def closed(self, client: Client) -> None:
        """The connection ended, by whoever's will."""
        if client.is_closed:
            return
        client.is_closed = True
        self.clients.pop(client, None)
        self._throttle.forget(client)
        self.watches.forget(client)
        if client.session and self._by_session.get(client.session) is client:
            del self._by_session[client.session]
            if client.close_with_connection and client.session in self.tree.sessions:
                self._submit(client.session, Op.CLOSE_SESSION, CONNECTION_LOST)

    def on_frame(self, client: Client, frame: bytes) -> None:
        """One frame from a client. Raises `BadFrame` if the connection makes no sense any more."""
        client.received += 1
        self.received += 1
        if not client.is_connected:
            self._connect(client, decode_connect(frame))
            return
        if len(frame) < 8:
            raise BadFrame("a request without a header")
        if not client.session:
            raise BadFrame("a request before the session is open")
        xid, op = REQUEST_HEADER.unpack_from(frame)
        self._touched.add(client.session)
        if op in WRITES:
            self._write(client, xid, op, frame[8:])
        elif client.queue and op not in (Op.PING, Op.AUTH):
            client.queue.append((xid, op, frame))
            self._throttle.asked(client)
        else:
            self._answer(client, xid, op, frame)

    def on_tick(self) -> None:
        """Call this a few times per tick."""
        if isinstance(self.role, Looking):
            waited = self._steady_ms() - self._looking_since
            self._waiting_in = [one for one in self._waiting_in if not one[0].is_closed]
            if waited > self.settings.grace_ms and self.clients:
                logger.warning("no leader for %d ms: clients are sent elsewhere", waited)
                for client in list(self.clients):
                    self._drop(client)
            return
        if self._leadership is not None:
            self._leadership.touch(self._touched)
            self._touched.clear()
            self._leadership.clear_away()
            if self._leadership.proposals:
                self._rouse()
        elif self._touched:
            self._rouse()

    def press(self, pressed: bool) -> None:
        """The disk does not keep up (or does again)."""
        self._throttle.press(pressed)

    # The protocol's side.

    def on_delivery(self, item: Any) -> None:
        match item:
            case Committed(zxid, txns):
                for index, payload in enumerate(txns):
                    self._apply(zxid + index, payload)
            case Request(origin, payload):
                self._request(origin, payload)
            case Looking():
                if not isinstance(self.role, Looking):
                    self._looking_since = self._steady_ms()
                    self.elections += 1
                self.role = item
                self._leadership = None
            case Following():
                self._serve(item)
            case Leading():
                self._leadership = Leadership(
                    self.settings.server,
                    self.tree,
                    now_ms=self._now_ms,
                    steady_ms=self._steady_ms,
                    bucket_ms=max(1, self.settings.tick_ms // 10),
                    enforce_quota=self.settings.enforce_quota,
                )
                self._serve(item)
            case FromLeader():
                pass

    def restore(self, tree: Tree) -> None:
        """Replace the whole state: the tree of a snapshot.

        Nobody can tell what happened on the way there, to writes that wait for their answer and to watches. So
        clients are sent away: they come back with what they saw last, and are told what they missed.
        """
        self.tree = tree
        self.tree.set_config(self.settings.config_text)
        for client in list(self.clients):
            self._drop(client)

    def flush(self) -> None:
        """Hand over what was collected since `wake` was called: many requests travel as one."""
        self._awake = False
        if isinstance(self.role, Looking):
            return
        leadership = self._leadership
        if self._pending.unsent or self._attached or (self._touched and leadership is None):
            touched, attached = tuple(self._touched), tuple(self._attached)
            self._touched.clear()
            self._attached.clear()
            for run in self._pending.take_unsent() or [[]]:
                forward = Forward(touched, attached, tuple(run))
                if leadership is not None:
                    leadership.take(self.settings.server, forward)
                else:
                    self._command(ToLeader(encode_forward(forward)))
                touched = attached = ()
        if leadership is not None and leadership.proposals and isinstance(self.role, Leading):
            proposals, leadership.proposals = leadership.proposals, []
            for batch in in_runs(proposals, len):
                self._command(Propose(tuple(batch), self.role.epoch))

    @property
    def outstanding(self) -> int:
        return len(self._pending)

    # Sessions.

    def _connect(self, client: Client, connect: Connect) -> None:
        client.is_connected = True
        if not self._has_served:
            self._drop(client)
            return
        is_ahead = connect.last_zxid_seen > self.tree.last_zxid
        if isinstance(self.role, Looking) and (connect.session or is_ahead):
            # What it last asked another server for may be in the history of the next leader, and not in ours
            # yet. It is let in when that is decided; else it would look for it in vain and ask again.
            self._waiting_in.append((client, connect))
            return
        if is_ahead:  # it saw a state that we do not have: going on here would take it back in time
            self._drop(client)
            return
        if connect.session == 0:
            self._session_counter += 1
            session = new_session(self.settings.server, self._now_ms(), self._session_counter)
            timeout = negotiate(connect.timeout, self.settings.tick_ms)
            opened = SessionOpened(timeout, os.urandom(16), connect.close_with_connection)
            self._submit(
                session, Op.CREATE_SESSION, msgspec.msgpack.encode(opened), client=client, connect=connect
            )
        elif connect.session in self.tree.sessions:
            self._attach(client, connect)
        else:
            # It may be too new for us to know: ask the leader for all there is, then look again.
            self._submit(0, Op.SYNC, pack_string("/"), client=client, connect=connect)

    def _attach(self, client: Client, connect: Connect) -> None:
        known = self.tree.sessions.get(connect.session)
        if known is None or not hmac.compare_digest(known.password, connect.password):
            self._expired(client, connect)
            return
        self._attached.append(connect.session)
        self._begin(client, connect, connect.session)
        self._rouse()

    def _begin(self, client: Client, connect: Connect, session: int) -> None:
        known = self.tree.sessions[session]
        before = self._by_session.get(session)
        if before is not None and before is not client:
            before.close_with_connection = False
            self._drop(before)
        self._by_session[session] = client
        client.session = session
        client.timeout = known.timeout
        client.close_with_connection = known.close_with_connection
        self._touched.add(session)
        has_flag = connect.read_only is not None
        self._send(client, connect_reply(known.timeout, session, known.password, with_read_only=has_flag))
        self._drain(client)

    def _expired(self, client: Client, connect: Connect) -> None:
        has_flag = connect.read_only is not None
        self._send(client, connect_reply(0, 0, _NO_PASSWORD, with_read_only=has_flag))
        self._drop(client)

    # Writes.

    def _write(self, client: Client, xid: int, op: int, body: bytes) -> None:
        client.queue.append(self._submit(client.session, op, body, client=client, xid=xid))
        self._throttle.asked(client)

    def _submit(
        self,
        session: int,
        op: int,
        body: bytes,
        *,
        client: Client | None = None,
        xid: int = 0,
        connect: Connect | None = None,
    ) -> int:
        self._rouse()
        return self._pending.add(session, op, body, client=client, xid=xid, connect=connect)

    def _serve(self, role: Following | Leading) -> None:
        """There is a leader, and we hold all of its history: what is unanswered is in nobody's."""
        self.role = role
        self._has_served = True
        self._pending.send_again(self.tree.sequences.get(self.settings.server, 0))
        self._attached = [client.session for client in self._by_session.values()]
        self._touched.update(self._by_session)
        waiting, self._waiting_in = self._waiting_in, []
        for client, connect in waiting:
            if not client.is_closed:
                self._connect(client, connect)
        self._rouse()

    def _request(self, origin: int, payload: bytes) -> None:
        if self._leadership is not None:
            self._leadership.take(origin, decode_forward(payload))
            self._rouse()

    def _apply(self, zxid: int, payload: bytes) -> None:
        transaction = transactions.decode(payload)
        pending = self._pending.answered(transaction)
        applied = self.tree.apply(zxid, transaction, details=pending is not None)
        self.applied += 1
        if self._leadership is not None:
            self._leadership.applied(transaction)
        for event, path in applied.events:
            hearers = self.watches.fire(event, path)
            if hearers:
                frame = event_frame(event, path, zxid)
                for client in hearers:
                    assert isinstance(client, Client)
                    self._send(client, frame)
        if pending is not None and pending.client is not None and not pending.client.is_closed:
            self._reply_write(pending.client, pending, transaction, applied, zxid)
        if isinstance(transaction.operation, SessionClosed):
            client = self._by_session.get(transaction.session)
            if client is not None:
                self._drop(client)

    def _reply_write(
        self, client: Client, pending: Pending, transaction: Transaction, applied: Applied, zxid: int
    ) -> None:
        if pending.connect is not None:
            if transaction.session:
                self._begin(client, pending.connect, transaction.session)
            else:
                self._attach(client, pending.connect)
            return
        self.latency.add((time.monotonic() - pending.since) * 1000)
        head = client.queue.popleft()
        assert head == pending.submission.sequence, "replies leave in the order of the requests"
        op = pending.submission.op
        body = results.body(op, pending.submission.body, applied) if not applied.code else b""
        self._send(client, reply(pending.xid, zxid, applied.code, body))
        if applied.code in (Code.SESSION_EXPIRED, Code.SESSION_MOVED):
            self._drop(client)
        else:
            self._drain(client)

    def _drain(self, client: Client) -> None:
        """Answer the reads that waited for the write that is now answered."""
        queue = client.queue
        while queue and not isinstance(head := queue[0], int) and not client.is_closed:
            queue.popleft()
            self._answer(client, *head)
        self._throttle.relax()

    # Reads.

    def _answer(self, client: Client, xid: int, op: int, frame: bytes) -> None:
        if op == Op.PING:
            self._send(client, reply(xid, self.tree.last_zxid, 0))
            return
        super_digest = self.settings.super_digest
        frames, stays = reads.frames(client, xid, op, frame, self.tree, self.watches, super_digest)
        for one in frames:
            self._send(client, one)
        if not stays:
            self._drop(client)

    # Connections.

    def _send(self, client: Client, frame: bytes) -> None:
        client.sent += 1
        self.sent += 1
        client.port.write(frame)

    def _drop(self, client: Client) -> None:
        client.port.close()
        self.closed(client)

    def _rouse(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake()
