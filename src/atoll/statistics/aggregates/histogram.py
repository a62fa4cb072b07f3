"""Histograms over common bins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["counts_in", "edges_of"]

Numbers = NDArray[np.float64]
_CHUNK = 1 << 16


def edges_of(low: float, high: float, bins: int) -> Numbers:
    """The edges of bins of equal width, ``(bins + 1,)``, as `numpy.histogram` makes them; of one value, half a unit to each side."""
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)


def counts_in(values: NDArray[Any], edges: Numbers) -> NDArray[np.int64]:
    """How many numbers lie in each bin, ``(bins,)``: the counts of `numpy.histogram` to the number. The last bin has its upper edge; what lies outside is not counted."""
    bins = len(edges) - 1
    low, high = edges[0], edges[-1]
    scale = bins / (high - low) if math.isfinite(high - low) else 0.0
    counts = np.zeros(bins + 1, np.int64)
    for start in range(0, len(values), _CHUNK):
        x = np.asarray(values[start : start + _CHUNK], dtype=np.float64)
        if not (x.min() >= low and x.max() <= high):
            x = x[(x >= low) & (x <= high)]
        places = ((x - low) * scale).astype(np.intp)
        np.minimum(places, bins - 1, out=places)
        if not scale:
            places = np.searchsorted(edges[1:-1], x, side="right")
        places -= x < edges[places]  # rounding may miss an edge by one bin
        places += (x >= edges[places + 1]) & (places != bins - 1)
        counts += np.bincount(places, minlength=bins + 1)
    return counts[:bins]
