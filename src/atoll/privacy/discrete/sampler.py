"""Draws of whole numbers from uniform random words: inversion of the distribution function with 128 random bits."""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

from .laws import TAIL_BITS, Law

__all__ = ["DISTANCE", "DiscreteSampler", "Source", "sampler_of"]

Source = Callable[[int], NDArray[np.uint64]]
"""Gives so many uniform random words of 64 bits, never the same twice: a keystream of a party's secret."""
DISTANCE = 2.0**-100
"""Bound of the statistical distance of one draw from its law: ``2^-120`` for the tail, and ``2^-129`` for each of at most ``2^21`` entries of the table."""
_BITS = 128
_LEAST_GUIDE, _MOST_GUIDE = 16, 18
"""Bits of the first word that a guide looks up: more for tables that hold more values than it has cells."""
_PIECE = 1 << 15
_DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LOW = (1 << 64) - 1


class DiscreteSampler:
    """Draws from a law: the value is the number of thresholds ``T_k = round(2^128 P(X <= k))`` that are not above a uniform number of 128 bits.

    The first 64 bits decide, unless they equal those of a threshold. Only then are 64 more drawn, so a draw costs 8 bytes of keystream. A guide over
    the first 16 bits finds most values without a search. The number of thresholds that a search visits depends on the value, so times may tell of it:
    do not let an adversary measure single draws.

    Args:
        law: the law.

    Attributes:
        first: the smallest value.
        high: the first 64 bits of each threshold but the last, which is ``2^128``.
        low: their other 64 bits.
    """

    def __init__(self, law: Law) -> None:
        self.law = law
        self.first, weights = law.weights()
        with localcontext(_DIGITS):
            below, thresholds = Decimal(0), list[int]()
            unit = (1 << _BITS) / sum(weights, below)
            for weight in weights[:-1]:
                below += weight
                thresholds.append(min((1 << _BITS) - 1, int((below * unit).to_integral_value())))
        self.high: NDArray[np.uint64] = np.array([t >> 64 for t in thresholds], dtype=np.uint64)
        self.low: NDArray[np.uint64] = np.array([t & _LOW for t in thresholds], dtype=np.uint64)
        bits = min(_MOST_GUIDE, max(_LEAST_GUIDE, len(self.high).bit_length()))
        self._shift = np.uint64(64 - bits)
        begins = np.searchsorted(self.high, np.arange(1 << bits, dtype=np.uint64) << self._shift, side="left")
        inside = np.diff(begins, append=len(self.high))
        self._begins: NDArray[np.int64] = begins.astype(np.int64)
        self._several = inside > 1
        self._sparse = bool((inside == 0).mean() > 0.5)
        self._padded = np.append(self.high, np.uint64(_LOW))
        if self._sparse:
            self._begins[inside > 0] = -1

    @property
    def distance(self) -> float:
        """Statistical distance of one draw from the law, at most `DISTANCE`."""
        return (len(self.high) + 1) * 2.0 ** -(_BITS + 1) + 2.0**-TAIL_BITS

    def draw(self, source: Source, count: int) -> NDArray[np.int64]:
        """Return independent draws.

        Args:
            source: uniform random words.
            count: how many.

        Raises:
            ConfigError: the count is negative.
        """
        if count < 0:
            raise ConfigError(f"count={count} draws", where="DiscreteSampler", remedy="use 0 or more")
        out = np.empty(count, dtype=np.int64)
        for start in range(0, count, _PIECE):
            piece = out[start : start + _PIECE]
            words = source(len(piece))
            cells = words >> self._shift
            piece[:] = self._begins[cells]
            if self._sparse:  # most cells have one value
                rest = np.flatnonzero(piece < 0)
            else:  # most have one threshold
                edges = self._padded[piece]
                rest = np.flatnonzero(self._several[cells] | (edges == words))
                piece += edges < words
            piece[rest] = self._found(words[rest], source)
        out += self.first
        return out

    def _found(self, words: NDArray[np.uint64], source: Source) -> NDArray[np.int64]:
        """How many thresholds are not above each number that begins with one of these words."""
        place: NDArray[np.int64] = np.searchsorted(self.high, words, side="left").astype(np.int64)
        last = max(0, len(self.high) - 1)
        for i in np.flatnonzero(self.high[np.minimum(place, last)] == words).tolist():
            more, at = int(source(1)[0]), int(place[i])
            while at <= last and self.high[at] == words[i] and int(self.low[at]) <= more:
                at += 1
            place[i] = at
        return place


@lru_cache(maxsize=128)
def sampler_of(law: Law) -> DiscreteSampler:
    """The sampler of a law; its table is made once."""
    return DiscreteSampler(law)
