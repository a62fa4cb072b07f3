"""A least-recently-used cache of data sets, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

from .dataset import Dataset


class ByteCache:
    """Keep the data sets used last, at most ``limit`` bytes of them. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: OrderedDict[int, tuple[Dataset, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes in the cache now."""
        return self._bytes

    def get(self, key: int, make: Callable[[int], Dataset]) -> Dataset:
        """Return the data set of a key; make it if it is not in the cache."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found[0]
        made = make(key)
        size = made.nbytes
        with self._lock:
            if key not in self._held and size <= self.limit:
                self._held[key] = made, size
                self._bytes += size
                while self._bytes > self.limit:
                    self._bytes -= self._held.popitem(last=False)[1][1]
        return made

    # Another process starts with an empty cache, since its contents can be made again.
    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["limit"])  # type: ignore[misc]
