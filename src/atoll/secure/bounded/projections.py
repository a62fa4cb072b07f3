"""Random projections of hidden words: a test of norms that two servers can make at each alone, up to a few comparisons.

The entries of ``R``, ``(K, D)``, are -1, 0 and 1 with chances 1/4, 1/2, 1/4. A projection ``y = R_k x`` has mean 0 and variance ``s^2 = ||x||^2 / 2``. The test refuses ``x`` if more than ``M`` of the ``K``
projections have ``|y| > b``, where ``b = 3 B / sqrt(2)``, for the bound ``B``. All is modulo ``2^64``; words are taken as numbers of ``[-2^63, 2^63)``.

* **Within the bound it passes**, whatever its shape: ``E exp(t y) <= exp(t^2 ||x||^2 / 4)``, so ``P[|y| > b] <= 2 exp(-9/2) < 0.0223``, and by Chernoff's bound
  ``P[more than M of K] <= exp(-K KL(0.1 || 0.0223)) < 4e-9`` for ``K = 256``, ``M = 25``.
* **With one entry above 2b it is refused**, also if sums wrap around: whatever the others add up to, if ``z`` is within ``b`` of 0, ``z - x_j`` and ``z + x_j`` are not, so
  ``P[|y| > b] >= 1/2``, and it passes with a chance below ``exp(-2 K 0.4^2) < 1e-35``. No vector whose squares would wrap around slips through.
* **Above ten times the bound it is refused**, whatever its shape. If all entries are within ``2b``, no sum wraps around (`BoundPlan` demands ``(2D + 1) b < 2^63``), ``E y^4 <= 3 s^4``, and the inequality of
  Paley and Zygmund gives ``P[|y| > b] >= (1 - b^2/s^2)^2 / 3 > 0.27``: it passes with a chance below ``1e-10``.
* In between the chance depends on the shape. Sums of many entries are close to normal: above 2.5 times the bound such a vector passes with a chance below 1e-6, at twice the bound with about one in twenty.

``R`` must not be known before ``x`` is fixed: both servers draw its seed together once all shares have arrived.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..keystream import Keystream

__all__ = ["MOST_OUTSIDE", "PROJECTIONS", "RATIO", "project_rows"]

Array = np.ndarray[Any, np.dtype[Any]]
PROJECTIONS = 256
"""``K``."""
MOST_OUTSIDE = 25
"""``M``."""
RATIO = 3 / 2**0.5
"""``b / B``."""
_COLUMNS = 4096
"""Entries of a vector that are projected at once."""


def project_rows(rows: Array, seed: bytes) -> Array:
    """Random projections of rows of words modulo ``2^64``, ``(rows, K)``.

    Floating point computes them exactly: words are cut into four limbs of 16 bits, whose sums stay below ``2^53``.

    Args:
        rows: uint64, ``(rows, D)``.
        seed: 32 bytes, public once the words are fixed.
    """
    source, made = Keystream(seed), np.zeros((len(rows), PROJECTIONS), dtype=np.uint64)
    for start in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, start : start + _COLUMNS]
        signs = _signs(source, part.shape[1])
        for limb in range(4):
            piece = ((part >> np.uint64(16 * limb)) & np.uint64(0xFFFF)).astype(np.float64)
            made += (piece @ signs).astype(np.int64).view(np.uint64) << np.uint64(16 * limb)
    return made


def _signs(source: Keystream, columns: int) -> Array:
    """The next columns of ``R``, transposed, ``(columns, K)``: the differences of two random bits."""
    words = source(2 * columns * PROJECTIONS // 64).view(np.uint8)
    first, second = np.unpackbits(words).reshape(2, columns, PROJECTIONS).astype(np.float64)
    return np.asarray(first - second)
