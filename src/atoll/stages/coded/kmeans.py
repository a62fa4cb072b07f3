"""Codebooks by k-means, and the nearest codeword."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["codebook", "nearest"]

Array = np.ndarray[Any, np.dtype[Any]]
_ROWS = 1 << 14
"""Points whose distances are in memory at once."""


def nearest(points: Array, words: Array) -> Array:
    """Return the index of the nearest codeword of each point, the first of several at the same distance.

    Args:
        points: ``(n, d)``.
        words: ``(k, d)``.
    """
    squares = (words * words).sum(axis=1)
    parts = [
        np.argmin(squares - 2.0 * (points[at : at + _ROWS] @ words.T), axis=1) for at in range(0, len(points), _ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def codebook(points: Array, k: int, rng: np.random.Generator, iterations: int = 20) -> Array:
    """Return ``k`` codewords by Lloyd's algorithm, from distinct random points; an empty cell gets the point that is farthest from its codeword.

    Lloyd 1982, "Least Squares Quantization in PCM".

    Args:
        points: ``(n, d)``, at least ``k``.
        k: number of codewords.
        rng: the random stream of the first codewords.
        iterations: the largest number of iterations; it ends earlier once no point changes its cell.
    """
    words = points[np.sort(rng.permutation(len(points))[:k])]
    cells = np.full(len(points), -1)  # distances in the precision of the points, means in float64
    for _ in range(iterations):
        found = nearest(points, words)
        if (found == cells).all():
            break
        cells = found
        sizes = np.bincount(cells, minlength=k)
        sums = np.stack([np.bincount(cells, column, minlength=k) for column in points.T], axis=1)
        words = np.where(sizes[:, None] > 0, sums / sizes.clip(min=1)[:, None], words).astype(points.dtype)
        empty = np.flatnonzero(sizes == 0)
        if len(empty):
            far = np.argsort(-((points - words[cells]) ** 2).sum(axis=1), kind="stable")
            words[empty] = points[far[: len(empty)]]
    return words
