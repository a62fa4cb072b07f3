"""How much a process may have in transit on all its channels together."""

from __future__ import annotations

from typing import Any
from weakref import ref

from atoll.core.errors import ConfigError
from atoll.runtime.transport.base import BLOCK

__all__ = ["DRAINED", "LATEST", "LEAST", "LineFlight"]

DRAINED = 256 << 10
"""Bytes after which a receiver that has consumed whole messages acknowledges them."""
LATEST = BLOCK + 2 * DRAINED
"""Bytes after which a receiver acknowledges in any case. A sender that must wait with less than that in transit asks: each acknowledgement costs time."""
LEAST = BLOCK + 2 * DRAINED
"""Bytes that every channel may have in transit: a block, and what may still wait for its acknowledgement."""


class LineFlight:
    """Bytes in transit on many channels, shared equally by the channels that have any: slow receivers do not add up, nor do many senders.

    A channel alone has its whole window; of ``n`` channels each has ``total / n``, and at least 1.5 MiB, once what it
    had before is consumed. So a process holds ``max(total, 1.5 MiB * n)`` for receivers at the other ends, where
    windows alone would let it hold ``window * n``. What it receives is bounded likewise: each acknowledgement says how
    much the sender may have in transit.

    Args:
        total: bytes.

    Raises:
        ConfigError: not above 0.
    """

    def __init__(self, total: int = 32 << 20) -> None:
        if total <= 0:
            raise ConfigError(f"flight is {total} bytes", where="line settings", remedy="give a number above 0")
        self.total = total
        # By identity; a channel that is forgotten with its line has no share any more.
        self._busy: dict[int, ref[Any]] = {}

    def share(self, of: object) -> int:
        """Return how much a channel's half may have in transit now."""
        return max(LEAST, self.total // (len(self._busy) + (id(of) not in self._busy)))

    def began(self, one: object) -> None:
        """Note that something of it is in transit."""
        if (key := id(one)) not in self._busy:
            self._busy[key] = ref(one, lambda _: self._busy.pop(key, None))

    def note_consumed(self, one: object) -> None:
        """Note that all of it is consumed."""
        self._busy.pop(id(one), None)
