"""Hosts from which handshakes fail: a host that fails again and again has few handshakes at once, and others have theirs."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["AT_ONCE", "PENALTY", "THROTTLED", "FailedHandshakes"]

PENALTY = 1.0
"""Seconds that a visitor from a throttled host waits for its handshake, where it can be made to wait."""
AT_ONCE = 32
"""Visitors of a throttled host in that time."""
THROTTLED = "too many handshakes from its host have failed"
_FAILURES, _WINDOW, _HOSTS = 20, 10.0, 1024


class FailedHandshakes:
    """Counts the failed handshakes of each host. From 20 in 10 seconds on, a host is throttled until these are over.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}
        self._allowed: dict[str, tuple[float, float]] = {}  # handshakes left to a throttled host, and since when

    def note(self, host: str) -> None:
        """Count a failed handshake."""
        now = self._clock()
        if len(self._failures) >= _HOSTS:
            self._failures = {host: found for host, found in self._failures.items() if now - found[1] < _WINDOW}
            self._allowed = {host: found for host, found in self._allowed.items() if host in self._failures}
        count, since = self._failures.get(host, (0, now))
        self._failures[host] = (count + 1, since) if now - since < _WINDOW else (1, now)

    def throttled(self, host: str) -> bool:
        """Tell whether many handshakes of a host have failed lately."""
        count, since = self._failures.get(host, (0, 0.0))
        return count >= _FAILURES and self._clock() - since < _WINDOW

    def admits(self, host: str) -> bool:
        """Tell whether a host may begin one more handshake now: a throttled one begins `AT_ONCE` in `PENALTY` seconds."""
        if not self.throttled(host):
            return True
        now = self._clock()
        left, since = self._allowed.get(host, (float(AT_ONCE), now))
        left = min(float(AT_ONCE), left + (now - since) * AT_ONCE / PENALTY)
        self._allowed[host] = (max(0.0, left - 1.0), now)
        return left >= 1.0
