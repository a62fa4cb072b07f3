"""The log of those who are not let in: whoever knocks again and again does not fill the disk."""

from __future__ import annotations

import asyncio
import logging

__all__ = ["RefusalLog"]

_LOG = logging.getLogger("atoll.runtime")
_WINDOW = 10.0  # seconds
_LINES = 10  # of one origin and one reason in a window
_ORIGINS = 64  # pairs of origin and reason in a window
_OTHERS = ("other places", "for whatever reason")


class RefusalLog:
    """Writes a line for each refusal, and where many are alike the first ten in ten seconds; how many more there were is said at their end."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def say(self, origin: str, why: str, line: str) -> None:
        """Somebody was refused.

        Args:
            origin: where they come from, or who they are: a host without its port, a party.
            why: the reason.
            line: all that there is to say.
        """
        key = (origin, why)
        if key not in self._counts and len(self._counts) >= _ORIGINS:
            key = _OTHERS
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= _LINES:
            _LOG.warning("%s", line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW, self.close)

    def connection(self, host: str, port: int, why: str) -> None:
        """A connection was refused."""
        self.say(host, why, f"a connection from {host}:{port} is refused: {why}")

    def close(self) -> None:
        """Say what was left out; what comes now is said again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (origin, why), count in self._counts.items():
            if count > _LINES:
                _LOG.warning("%d more connections from %s were refused: %s", count - _LINES, origin, why)
        self._counts.clear()
