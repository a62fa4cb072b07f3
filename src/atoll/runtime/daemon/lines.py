"""Lines of output for a log: in batches, and no more than a person could read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Lines"]

EVERY = 0.1
"""Seconds that a line waits for more lines."""
MOST = 500
"""Lines of one batch; lines beyond that are counted and left out."""


class Lines:
    """Collects lines, and sends them in batches.

    Args:
        send: takes a batch.
    """

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self._send = send
        self._lines: list[str] = []
        self._left_out = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: str) -> None:
        """Add one line."""
        if len(self._lines) >= MOST:
            self._left_out += 1
            return
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self.flush)

    def flush(self) -> None:
        """Send the collected lines now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._left_out:
            self._lines.append(f"[{self._left_out} more lines within {EVERY:g} s, left out]")
        lines, self._lines, self._left_out = self._lines, [], 0
        if lines:
            self._send(lines)
