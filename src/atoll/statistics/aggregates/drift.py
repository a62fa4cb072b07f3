"""How far a site's distribution is from that of all sites.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LARGE", "STABLE", "Drift", "drift_of"]

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
