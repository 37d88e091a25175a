"""Watches: who wants to hear of what. They belong to one server and its connections, and are not replicated.

A data watch also serves `exists`. One-shot watches are gone once they fired; persistent ones stay until
they are removed or their connection ends. A watcher hears of one event once, however many watches match.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from lockstep.coordination import paths
from lockstep.coordination.tree import Tree
from lockstep.coordination.wire.codes import Event, WatcherType
from lockstep.coordination.wire.records import SetWatches

Watcher = TypeVar("Watcher", bound=Hashable)

_DATA, _CHILD, _PERSISTENT, _RECURSIVE = range(4)


class WatchTable(Generic[Watcher]):
    def __init__(self) -> None:
        # dicts instead of sets: watchers are told in the order in which they came, the same on every run
        self._by_path: tuple[dict[str, dict[Watcher, None]], ...] = ({}, {}, {}, {})
        self._by_watcher: dict[Watcher, set[tuple[int, str]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_watcher.values()))

    @property
    def watchers(self) -> int:
        return len(self._by_watcher)

    @property
    def paths(self) -> int:
        return sum(map(len, self._by_path))

    def watch_data(self, path: str, watcher: Watcher) -> None:
        self._add(_DATA, path, watcher)

    def watch_children(self, path: str, watcher: Watcher) -> None:
        self._add(_CHILD, path, watcher)

    def watch_persistent(self, path: str, watcher: Watcher, *, recursive: bool) -> None:
        self._add(_RECURSIVE if recursive else _PERSISTENT, path, watcher)

    def fire(self, event: int, path: str) -> Iterable[Watcher]:
        """The watchers that must hear of the event. One-shot watches that matched are used up."""
        _, _, persistent, recursive = self._by_path
        hearers: dict[Watcher, None] = {}
        if event != Event.CHILDREN_CHANGED:
            self._use_up(_DATA, path, hearers)
        if event in (Event.CHILDREN_CHANGED, Event.DELETED):
            self._use_up(_CHILD, path, hearers)
        if path in persistent:
            hearers.update(persistent[path])
        if recursive and event != Event.CHILDREN_CHANGED:
            for above in paths.ancestors(path):
                if above in recursive:
                    hearers.update(recursive[above])
        return hearers

    def has(self, path: str, watcher: Watcher, kind: int) -> bool:
        return bool(self._matching(path, watcher, kind))

    def remove(self, path: str, watcher: Watcher, kind: int) -> bool:
        """Remove the watcher's watches of that type on the path; false if there were none."""
        matching = self._matching(path, watcher, kind)
        for entry in matching:
            self._drop(entry, watcher)
        return bool(matching)

    def forget(self, watcher: Watcher) -> None:
        """The connection is gone, and its watches with it."""
        for entry in self._by_watcher.pop(watcher, set()):
            self._unlist(entry, watcher)

    def restore(self, watcher: Watcher, request: SetWatches, tree: Tree) -> list[tuple[Event, str]]:
        """setWatches: a client comes back with its watches. What it missed it hears now, the rest is set."""
        missed: list[tuple[Event, str]] = []
        since = request.relative_zxid
        for path in request.data:
            node = tree.nodes.get(path)
            if node is None:
                missed.append((Event.DELETED, path))
            elif node.mzxid > since:
                missed.append((Event.DATA_CHANGED, path))
            else:
                self.watch_data(path, watcher)
        for path in request.exist:
            if path in tree.nodes:
                missed.append((Event.CREATED, path))
            else:
                self.watch_data(path, watcher)
        for path in request.child:
            node = tree.nodes.get(path)
            if node is None:
                missed.append((Event.DELETED, path))
            elif node.pzxid > since:
                missed.append((Event.CHILDREN_CHANGED, path))
            else:
                self.watch_children(path, watcher)
        for path in request.persistent:
            self.watch_persistent(path, watcher, recursive=False)
        for path in request.recursive:
            self.watch_persistent(path, watcher, recursive=True)
        return missed

    def _add(self, kind: int, path: str, watcher: Watcher) -> None:
        self._by_path[kind].setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, set()).add((kind, path))

    def _use_up(self, kind: int, path: str, hearers: dict[Watcher, None]) -> None:
        watchers = self._by_path[kind].pop(path, None)
        if watchers:
            hearers.update(watchers)
            for watcher in watchers:
                self._by_watcher[watcher].discard((kind, path))
                if not self._by_watcher[watcher]:
                    del self._by_watcher[watcher]

    def _matching(self, path: str, watcher: Watcher, kind: int) -> list[tuple[int, str]]:
        wanted: tuple[int, ...]
        match kind:
            case WatcherType.CHILDREN:
                wanted = (_CHILD,)
            case WatcherType.DATA:
                wanted = (_DATA,)
            case WatcherType.PERSISTENT:
                wanted = (_PERSISTENT,)
            case WatcherType.RECURSIVE:
                wanted = (_RECURSIVE,)
            case _:
                wanted = (_DATA, _CHILD, _PERSISTENT, _RECURSIVE)
        mine = self._by_watcher.get(watcher, set())
        return [(k, path) for k in wanted if (k, path) in mine]

    def _drop(self, entry: tuple[int, str], watcher: Watcher) -> None:
        mine = self._by_watcher[watcher]
        mine.discard(entry)
        if not mine:
            del self._by_watcher[watcher]
        self._unlist(entry, watcher)

    def _unlist(self, entry: tuple[int, str], watcher: Watcher) -> None:
        kind, path = entry
        watchers = self._by_path[kind].get(path)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._by_path[kind][path]
