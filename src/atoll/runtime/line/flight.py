"""What a process may have on its way on all its channels together."""

from __future__ import annotations

from typing import Any
from weakref import ref

from atoll.core.errors import ConfigError
from atoll.runtime.transport.base import BLOCK

__all__ = ["DRAINED", "LATEST", "LEAST", "LineFlight"]

DRAINED = 256 << 10
"""Bytes after which a taker that has consumed whole messages says so."""
LATEST = BLOCK + 2 * DRAINED
"""Bytes after which a taker says so in any case. A giver that must wait with less than that on its way asks: every word has its price."""
LEAST = BLOCK + 2 * DRAINED
"""Bytes that every channel may have on their way: a block, and what may still wait for its word."""


class LineFlight:
    """Bytes on their way on many channels, shared equally by those that have any: slow takers do not add up, nor do many givers.

    A channel alone has its whole window; of ``n`` channels each has ``total / n``, and 1.5 MiB at least, once what it had before is consumed. So
    a process comes to hold ``max(total, 1.5 MiB * n)`` for takers at the other ends, where windows alone would let it hold ``window * n``. What it
    takes is bounded likewise: with each acknowledgement it says what the giver may have on its way.

    Args:
        total: bytes.

    Raises:
        ConfigError: not above 0.
    """

    def __init__(self, total: int = 32 << 20) -> None:
        if total <= 0:
            raise ConfigError(f"a flight of {total} bytes", where="line settings", remedy="give a number above 0")
        self.total = total
        # By identity; a channel that is forgotten with its line has no share any more.
        self._busy: dict[int, ref[Any]] = {}

    def share(self, of: object) -> int:
        """What a channel's half may have on its way now."""
        return max(LEAST, self.total // (len(self._busy) + (id(of) not in self._busy)))

    def began(self, one: object) -> None:
        """Something of it is on its way."""
        if (key := id(one)) not in self._busy:
            self._busy[key] = ref(one, lambda _: self._busy.pop(key, None))

    def ended(self, one: object) -> None:
        """All of it was consumed."""
        self._busy.pop(id(one), None)
