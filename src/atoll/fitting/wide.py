"""Real numbers as whole numbers that a secure sum adds up exactly.

A number ``v`` becomes six whole numbers ``w_0, ..., w_5`` with ``v = sum_k w_k 2^(64 - 32 k)``, ``|w_k| < 2^32``: fixed point from ``2^-96`` to ``2^95`` in
words of 32 bits, each in a place of 64. So many parties can add theirs without a carry, and no range has to be agreed on. What is lost of a number is below ``2^-97``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

__all__ = ["narrowed", "widened"]

WORDS, _STEP, _TOP = 6, 32, 64
_LARGEST = 2.0**95


def widened(values: Any) -> NDArray[np.int64]:
    """The words of some numbers, ``(..., 6)``.

    Raises:
        DataError: a number is ``2^95`` or larger, or not finite.
    """
    rest = np.array(values, dtype=np.float64)
    if not (np.abs(rest) < _LARGEST).all():
        raise DataError(
            f"a sum of {np.abs(rest).max():.3g} is too large for a secure sum",
            where="fit",
            remedy="use smaller units, or scale='standard'",
        )
    words = np.empty((*rest.shape, WORDS), np.int64)
    for k in range(WORDS):
        unit = 2.0 ** (_TOP - _STEP * k)
        # Division by a power of two, truncation and the difference are exact: only the last word rounds.
        part = np.rint(rest / unit) if k == WORDS - 1 else np.trunc(rest / unit)
        words[..., k] = part
        rest = rest - part * unit
    return words


def narrowed(words: Any) -> NDArray[np.float64]:
    """The numbers of summed words, rounded once: the inverse of `widened`."""
    summed = np.asarray(words, dtype=np.int64)
    low = np.zeros(summed.shape[:-1], np.int64)
    carried = np.empty_like(summed)
    for k in reversed(range(WORDS)):  # carry into the next word, so that the parts below are added in order of size
        total = summed[..., k] + low
        carried[..., k] = total - ((total + (1 << (_STEP - 1))) >> _STEP << _STEP) if k else total
        low = (total + (1 << (_STEP - 1))) >> _STEP
    found = np.zeros(summed.shape[:-1], np.float64)
    for k in reversed(range(WORDS)):
        found = found + carried[..., k] * 2.0 ** (_TOP - _STEP * k)
    return found
