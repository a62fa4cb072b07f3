"""Histograms over common bins, which add up, and how far the distribution of a site is from that of all sites.

With shares ``p`` of the site and ``q`` of all sites over the same bins or categories:

==================  ==========================================================  ==============================
measure             formula                                                     reading
==================  ==========================================================  ==============================
PSI                 ``sum (p - q) ln (p / q)``                                  below 0.1 stable, above 0.25 large
Kolmogorov-Smirnov  ``max |P - Q|``, of the cumulative shares                   0 to 1
Jensen-Shannon      ``sqrt((KL(p | m) + KL(q | m)) / 2)``, base 2, ``m = (p + q) / 2``  0 to 1, a distance
==================  ==========================================================  ==============================

The population stability index is infinite where one share is 0; as usual, shares below ``1e-4`` count as ``1e-4``. Without a histogram, the bins of a column of
numbers are the ten between the deciles of all sites. The Kolmogorov-Smirnov distance over bins is at most that of the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Drift", "LARGE", "STABLE", "counts_in", "drift_of", "edges_of"]

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


# ---------------------------------------------------------------- how far a site's distribution is from that of all sites

STABLE, LARGE = 0.1, 0.25
_FLOOR = 1e-4


@dataclass(frozen=True)
class Drift:
    """The distances of one column at one site.

    Attributes:
        psi: population stability index.
        ks: Kolmogorov-Smirnov distance; ``None`` for categories, which have no order.
        js: Jensen-Shannon distance.
        labels: the bins or categories.
        site: shares at the site.
        whole: shares at all sites.
    """

    psi: float
    ks: float | None
    js: float
    labels: Sequence[str]
    site: NDArray[np.float64]
    whole: NDArray[np.float64]

    @property
    def verdict(self) -> str:
        """``"stable"``, ``"moderate"`` or ``"large"``, by the index."""
        return "stable" if self.psi < STABLE else "moderate" if self.psi <= LARGE else "large"

    def plain(self) -> dict[str, float | str | None]:
        """The distances without the shares."""
        return {"psi": self.psi, "ks": self.ks, "js": self.js, "verdict": self.verdict}


def drift_of(site: ArrayLike, whole: ArrayLike, labels: Sequence[str], *, ordered: bool) -> Drift | None:
    """The distances between two sets of counts; ``None`` if one is empty.

    Args:
        site: counts at the site, ``(bins,)``.
        whole: counts at all sites, ``(bins,)``.
        labels: names of the bins.
        ordered: whether the bins have an order.
    """
    counts = np.asarray(site, np.float64), np.asarray(whole, np.float64)
    if not all(one.sum() > 0 for one in counts):
        return None
    p, q = (one / one.sum() for one in counts)
    floored = np.maximum(p, _FLOOR), np.maximum(q, _FLOOR)
    psi = float(((floored[0] - floored[1]) * np.log(floored[0] / floored[1])).sum())
    ks = float(np.abs(np.cumsum(p) - np.cumsum(q)).max()) if ordered else None
    middle = (p + q) / 2
    js = float(np.sqrt(max(0.0, (_divergence(p, middle) + _divergence(q, middle)) / 2)))
    return Drift(psi, ks, min(1.0, js), tuple(labels), p, q)


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    there = p > 0
    return float((p[there] * np.log2(p[there] / q[there])).sum())


def largest(drifts: Mapping[str, Mapping[str, Drift]]) -> list[tuple[str, str, Drift]]:
    """Site, column and distances, the largest index first."""
    rows = [(site, column, drift) for site, columns in drifts.items() for column, drift in columns.items()]
    return sorted(rows, key=lambda row: (-row[2].psi, row[0], row[1]))
