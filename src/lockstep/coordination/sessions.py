"""When sessions expire: the leader's book of deadlines, pure and without a clock.

Deadlines are rounded up to whole buckets, so that a touch costs a dictionary move at most and a check looks
at due buckets only. A new leader has heard from nobody yet: it gives every session its full timeout again
(`SessionTracker.restart`), so that an election never expires anybody.
"""

from collections.abc import Iterable, Mapping


def negotiate(asked_ms: int, tick_ms: int) -> int:
    """The timeout that a client gets: what it asks for, within 2 to 20 ticks."""
    return max(2 * tick_ms, min(20 * tick_ms, asked_ms))


def new_session(server: int, now_ms: int, counter: int) -> int:
    """A session's id as ZooKeeper makes it: the server above, then the time, then a count; 64 bits, signed."""
    low = ((now_ms << 24) >> 8) + counter
    session = server << 56 | low & ((1 << 56) - 1)
    return session - (1 << 64) if session >= 1 << 63 else session


class SessionTracker:
    def __init__(self, bucket_ms: int) -> None:
        self._bucket_ms = max(1, bucket_ms)
        self._timeouts: dict[int, int] = {}
        self._deadlines: dict[int, int] = {}
        self._buckets: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._timeouts)

    def restart(self, sessions: Mapping[int, int], now_ms: int) -> None:
        """Begin with these sessions and timeouts, each with its full time ahead of it."""
        self._timeouts.clear()
        self._deadlines.clear()
        self._buckets.clear()
        for session, timeout in sessions.items():
            self.add(session, timeout, now_ms)

    def add(self, session: int, timeout_ms: int, now_ms: int) -> None:
        self._timeouts[session] = timeout_ms
        self.touch(session, now_ms)

    def touch(self, session: int, now_ms: int) -> bool:
        """The session showed a sign of life; false if there is no such session."""
        timeout = self._timeouts.get(session)
        if timeout is None:
            return False
        bucket = (now_ms + timeout) // self._bucket_ms + 1
        old = self._deadlines.get(session)
        if old is not None and old >= bucket:
            return True
        if old is not None:
            self._leave(session, old)
        self._deadlines[session] = bucket
        self._buckets.setdefault(bucket, set()).add(session)
        return True

    def remove(self, session: int) -> None:
        self._timeouts.pop(session, None)
        bucket = self._deadlines.pop(session, None)
        if bucket is not None:
            self._leave(session, bucket)

    def expired(self, now_ms: int) -> Iterable[int]:
        """The sessions that are due; they are forgotten here."""
        due = sorted(bucket for bucket in self._buckets if bucket * self._bucket_ms <= now_ms)
        ended = [session for bucket in due for session in sorted(self._buckets[bucket])]
        for session in ended:
            self.remove(session)
        return ended

    def _leave(self, session: int, bucket: int) -> None:
        members = self._buckets[bucket]
        members.discard(session)
        if not members:
            del self._buckets[bucket]
