"""The PGM-index."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .registry import Floats, KeyIndex, Places, search_within

__all__ = ["PiecewiseGeometricIndex"]

_EPSILON = 64
_UPPER_EPSILON = 4
"""The largest error of a place among the keys, and among the segments of a level (Ferragina, Vinciguerra 2020, section 7.1)."""


def cut_segments(keys: Floats, epsilon: int) -> tuple[Places, Floats]:
    """Where segments begin, and their slopes: each is a line from its first key that errs by ``epsilon`` places at most.

    A segment is as long as a line through its first key can be (a *cone*): of blocks that double, the slopes that are still possible are the least and the largest so far.
    """
    starts, slopes, at, n = list[int](), list[float](), 0, len(keys)
    while at < n:
        low, high, end, size = 0.0, np.inf, at + 1, 2 * epsilon
        while end < n:
            block = slice(end, min(n, end + size))
            run = np.arange(block.start - at, block.stop - at, dtype=np.float64)
            apart = keys[block] - keys[at]
            with np.errstate(over="ignore"):
                below = np.maximum(low, np.maximum.accumulate((run - epsilon) / apart))
                above = np.minimum(high, np.minimum.accumulate((run + epsilon) / apart))
            fits = below <= above
            count = int(fits.argmin()) if not fits.all() else len(fits)
            if count:
                low, high, end = float(below[count - 1]), float(above[count - 1]), end + count
            if count < len(fits):
                break
            size *= 2
        slope = 0.0 if not np.isfinite(high) else low / 2 + high / 2
        starts.append(at)
        slopes.append(slope if np.isfinite(slope) else low)
        at = end
    return np.array(starts, np.int64), np.array(slopes)


class PiecewiseGeometricIndex(KeyIndex):
    """Levels of line segments whose error is the same everywhere, each level an index of the segments below (Ferragina, Vinciguerra 2020, "The PGM-index").

    A segment begins with its line on its first key. The paper lets the line begin anywhere within the error, which needs up to half as many segments, and takes one key after the other; here a segment is cut in blocks of NumPy.
    """

    name: ClassVar[str] = "pgm"

    def build(self, keys: Floats) -> None:
        """Cut segments, level by level."""
        self._levels: list[tuple[Floats, Places, Floats, Floats]] = []
        epsilon = _EPSILON
        while len(keys):
            starts, slopes = cut_segments(keys, epsilon)
            ends = np.append(starts[1:], len(keys))
            segment = np.repeat(np.arange(len(starts)), ends - starts)
            errors = np.zeros(len(starts))
            np.maximum.at(errors, segment, np.abs((keys - keys[starts][segment]) * slopes[segment] + starts[segment] - np.arange(len(keys))))  # fmt: skip
            self._levels.append((keys, np.append(starts, len(keys)), slopes, errors))
            if len(starts) == 1:
                break
            keys, epsilon = keys[starts], _UPPER_EPSILON

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return super().bytes + sum(one.nbytes for level in self._levels for one in level)

    @property
    def segments(self) -> list[int]:
        """Segments of each level, the lowest first."""
        return [len(level[2]) for level in self._levels]

    def rank(self, asked: Floats) -> Places:
        """From the top, predict and search within the error."""
        segment = found = np.zeros(len(asked), np.int64)
        for depth in reversed(range(len(self._levels))):
            keys, starts, slopes, errors = self._levels[depth]
            begin, end = starts[segment], starts[segment + 1]
            with np.errstate(over="ignore", invalid="ignore"):
                guess = np.nan_to_num((asked - keys[begin]) * slopes[segment]) + begin
            error = errors[segment] + 1
            low = np.clip(np.floor(guess - error), begin, end).astype(np.int64)
            high = np.clip(np.ceil(guess + error), begin, end).astype(np.int64)
            found = search_within(keys, asked, low, high)
            # The segment of a number is the last one that begins at or below it.
            exact = (found < len(keys)) & (keys[np.minimum(found, len(keys) - 1)] == asked)
            segment = np.maximum(0, found - ~exact)
        return found
