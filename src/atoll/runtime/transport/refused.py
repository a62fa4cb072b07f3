"""The log of refused connections: repeated attempts do not fill the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["OnRefused", "RefusalLog", "nowhere"]

_LOG = logging.getLogger("atoll.runtime")
_WINDOW = 10.0  # seconds
_LINES = 10  # of one origin and one reason in a window
_ORIGINS = 64  # pairs of origin and reason in a window
_OTHERS = ("other places", "for whatever reason")
_KINDS = 8  # pairs of origin and reason in a window that are told one by one

OnRefused: TypeAlias = Callable[[str, str, int], None]
"""Called with an origin, a reason, and how many connections from there were refused for it."""


def nowhere(origin: str, why: str, count: int) -> None:
    """Tell nobody about refused connections."""
    del origin, why, count


class RefusalLog:
    """Writes a line for each refusal. Of equal ones it writes the first ten in ten seconds, and then how many more there were.

    Args:
        on_refused: called with (origin, reason, number) for the first of equal ones, for eight kinds in ten seconds, and
            then once with the number of all others.
    """

    def __init__(self, on_refused: OnRefused = nowhere) -> None:
        self._on_refused = on_refused
        self._told = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def say(self, origin: str, why: str, line: str) -> None:
        """Note a refusal.

        Args:
            origin: where the visitor comes from, or who it is: a host without its port, a party.
            why: the reason.
            line: the full log line.
        """
        key = (origin, why)
        if key not in self._counts and len(self._counts) >= _ORIGINS:
            key = _OTHERS
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= _LINES:
            _LOG.warning("%s", line)
        if count == 1 and self._told < _KINDS:
            self._told += 1
            self._on_refused(origin, why, 1)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW, self.close)

    def connection(self, host: str, port: int, why: str) -> None:
        """Note a refused connection."""
        self.say(host, why, f"a connection from {host}:{port} is refused: {why}")

    def close(self) -> None:
        """Write what was left out; later refusals are written again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (origin, why), count in self._counts.items():
            if count > _LINES:
                _LOG.warning("%d more connections from %s were refused: %s", count - _LINES, origin, why)
        more = sum(self._counts.values()) - self._told
        if more > 0:
            self._on_refused(*_OTHERS, more)
        self._counts.clear()
        self._told = 0
