"""Services with a bug each: what the checkers of `service_simulation` are checked by."""

from collections import deque
from typing import Any

import msgspec

from lockstep.coordination.clients import Client
from lockstep.coordination.service import Service
from lockstep.coordination.tree import Tree
from lockstep.coordination.wire.records import REPLY_HEADER, Connect


def planted() -> dict[str, tuple[type[Service], str]]:
    """Each bug, and the promise that it breaks (as a pattern of the violation)."""

    class Renumbers(Service):
        """What is sent again gets a new number, so that nobody knows it again."""

        def _serve(self, role: Any) -> None:
            writes = self._pending
            pending, writes.by_number = writes.by_number, {}
            for one in pending.values():
                writes.last_number += 1
                one.submission = msgspec.structs.replace(one.submission, sequence=writes.last_number)
                writes.by_number[writes.last_number] = one
                if one.client is not None and one.connect is None:
                    queue = one.client.queue
                    numbers = [i for i, entry in enumerate(queue) if isinstance(entry, int)]
                    place = next((i for i in numbers if queue[i] in pending), None)
                    if place is not None:
                        queue[place] = writes.last_number
            super()._serve(role)

    class Forgets(Service):
        """Requests that were under way are not sent to the new leader."""

        def _serve(self, role: Any) -> None:
            self._pending.by_number.clear()
            super()._serve(role)

    class Overtakes(Service):
        """Reads do not wait for the writes before them."""

        def on_frame(self, client: Client, frame: bytes) -> None:
            queue, client.queue = client.queue, deque()
            super().on_frame(client, frame)
            client.queue = deque((*queue, *client.queue))

    class TellsLate(Service):
        """Events leave after the replies of the same transaction."""

        def _apply(self, zxid: int, payload: bytes) -> None:
            self._held: list[tuple[Client, bytes]] | None = []
            super()._apply(zxid, payload)
            held, self._held = self._held, None
            for client, frame in held:
                self._send(client, frame)

        def _send(self, client: Client, frame: bytes) -> None:
            held = getattr(self, "_held", None)
            if held is not None and client.is_connected and REPLY_HEADER.unpack_from(frame, 4)[0] == -1:
                held.append((client, frame))
            else:
                super()._send(client, frame)

    class TakesBack(Service):
        """A client is let in although it has seen more than this server."""

        def _connect(self, client: Client, connect: Connect) -> None:
            super()._connect(client, msgspec.structs.replace(connect, last_zxid_seen=0))

    class KeepsClients(Service):
        """After a snapshot, clients stay as if nothing had happened on the way there."""

        def restore(self, tree: Tree) -> None:
            self.tree = tree
            self.tree.set_config(self.settings.config_text)

    return {
        "renumbers": (Renumbers, "twice"),
        "forgets": (Forgets, "unanswered|replies leave in the order"),
        "overtakes": (Overtakes, "out of order"),
        "tells late": (TellsLate, "read before event"),
        "takes back": (TakesBack, "back in time"),
        "keeps clients": (
            KeepsClients,
            "missed event|unanswered|read before event|replies leave in the order",
        ),
    }
