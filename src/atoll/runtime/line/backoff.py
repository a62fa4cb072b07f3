"""Pauses between attempts to connect."""

from __future__ import annotations

import numpy as np

__all__ = ["Backoff"]


class Backoff:
    """Pauses between attempts: doubled each time up to a bound, and shortened at random so that many parties do not connect at once.

    The pause after ``k`` failures is uniform in ``[d/2, d]`` with ``d = min(longest, first * 2**k)``.

    Args:
        first: seconds.
        longest: seconds.
        seed: of the random part; give each party its own.
    """

    def __init__(self, first: float = 0.1, longest: float = 20.0, seed: int = 0) -> None:
        self._first = first
        self._longest = longest
        self._random = np.random.default_rng(seed)
        self._failures = 0

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._failures = 0

    def pause(self) -> float:
        """Return the seconds to wait after one more failure."""
        whole = min(self._longest, self._first * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return whole * (0.5 + 0.5 * self._random.random())
