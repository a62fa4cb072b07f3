"""Check words: how many entries of a sum of words wrapped around, which under masks the words themselves do not tell.

A party sends, beside its codes ``q_j``, one word for each run of ``m`` entries: ``t = sum_j e_j q_j mod 2^(p + 10)``, with public signs ``e_j``. The words of the sum
decode to ``Q_j - 2^p w_j``, where ``w_j`` is 0 for an entry that did not wrap around and 1 or -1 for one that did. The sum of the check words has
``sum_j e_j Q_j``, so it shows ``k = sum_j e_j w_j``. Over random signs the mean of ``k^2`` is ``sum_j w_j^2`` (Alon, Matias and Szegedy 1996): ``k^2``, summed over
the runs, is exact if at most one entry of each run wrapped around, and without bias otherwise. Its standard error is a share ``sqrt(2/runs)`` of itself at most.

Check words are sums of what the server learns anyway: the exact sum of the codes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng

from .words import lifted

__all__ = ["SPARE", "check_words", "wrapped_around"]

Array = np.ndarray[Any, np.dtype[Any]]
SPARE = 10
"""Bits by which a check word is longer than a word: ``k`` of a run is at most 511."""


@functools.lru_cache(maxsize=64)
def _signs(size: int, place: int) -> Array:
    """Public signs of the entries of a leaf, -1 and 1."""
    stream = Rng(0).child("check words", place).generator().bit_generator
    raw = np.atleast_1d(stream.random_raw(-(-size // 64))).astype("<u8")
    signs: Array = 1 - 2 * np.unpackbits(raw.view(np.uint8), count=size).astype(np.int8)
    signs.flags.writeable = False
    return signs


def _runs(values: Array, run: int, place: int) -> Array:
    """Signed sums of runs of entries, int64."""
    signed = np.ravel(values).astype(np.int64) * _signs(np.size(values), place)
    return np.add.reduceat(signed, np.arange(0, signed.size, run))


def check_words(codes: Array, bits: int, run: int, place: int) -> Array:
    """The check words of a leaf, ``ceil(size / run)`` unsigned integers of ``bits + SPARE`` bits.

    Args:
        codes: the codes of one party.
        bits: of a word of a code.
        run: entries of a run.
        place: of the leaf, from 0: each has signs of its own.
    """
    made = _runs(codes, run, place).astype(np.uint64) & np.uint64((1 << (bits + SPARE)) - 1)
    return made.astype(np.uint32) if bits + SPARE <= 32 else made


def wrapped_around(checks: Array, decoded: Array, bits: int, run: int, place: int) -> int:
    """Estimate how many entries of a sum wrapped around.

    Args:
        checks: the sum of the parties' check words of a leaf, reduced or not.
        decoded: the sum of the codes as it was decoded, whole numbers.
        bits: of a word of a code.
        run: as in `check_words`.
        place: as in `check_words`.
    """
    off = np.asarray(checks).astype(np.uint64) - _runs(decoded, run, place).astype(np.uint64)
    k = lifted(off.astype(np.int64), bits + SPARE) >> np.int64(bits)
    return int(min((k * k).sum(), np.size(decoded)))
