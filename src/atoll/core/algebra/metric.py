"""Metrics as commutative monoids: ``zero``, ``merge``, ``result``.

A metric summarises some data (``of``), summaries merge in any order and grouping, and ``result`` computes the metric from a summary. So the
summaries that parties compute on their own data merge into the summary of all data: over clients, blocks, trees of aggregators
and late arrivals. An *additive* metric merges by plain addition and works with a secure sum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError
from ..validation import Checked
from . import tree as T

__all__ = ["Average", "Extremes", "Histogram", "Metric", "Moments"]

Summary = dict[str, Any]
"""Maps a name to a scalar or an array of float64."""


@dataclass(frozen=True)
class Metric(Checked, ABC):
    """Base class of metrics.

    Laws: ``merge`` is associative and commutative (to rounding), ``zero()`` is its identity, and
    ``merge(of(a), of(b)) = of(a and b together)``.

    Attributes:
        additive: whether summaries merge by addition.
    """

    additive: ClassVar[bool] = True

    @abstractmethod
    def zero(self) -> Summary:
        """The summary of no data."""

    def merge(self, a: Summary, b: Summary) -> Summary:
        """The summary of both data."""
        merged: Summary = T.add(a, b)
        return merged

    @abstractmethod
    def result(self, summary: Summary) -> Any:
        """The metric; NaN if the data leave it undefined."""


@dataclass(frozen=True)
class Average(Metric):
    """The weighted mean ``sum_i w_i x_i / sum_i w_i``."""

    def zero(self) -> Summary:
        """The empty summary."""
        return {"sum": 0.0, "weight": 0.0}

    def of(self, values: ArrayLike, weights: ArrayLike = 1.0) -> Summary:
        """Summarise numbers, ``(n,)``, with weights, ``(n,)`` or one for all."""
        x = np.asarray(values, dtype=np.float64)
        w = np.broadcast_to(np.asarray(weights, dtype=np.float64), x.shape)
        return {"sum": float((w * x).sum()), "weight": float(w.sum())}

    def result(self, summary: Summary) -> float:
        """The mean."""
        return float(summary["sum"] / summary["weight"]) if summary["weight"] else math.nan


@dataclass(frozen=True)
class Extremes(Metric):
    """The smallest and the largest number. Not additive: it needs single summaries."""

    additive: ClassVar[bool] = False

    def zero(self) -> Summary:
        """The empty range."""
        return {"min": math.inf, "max": -math.inf}

    def of(self, values: ArrayLike) -> Summary:
        """Summarise numbers."""
        x = np.asarray(values, dtype=np.float64)
        return {"min": float(x.min(initial=math.inf)), "max": float(x.max(initial=-math.inf))}

    def merge(self, a: Summary, b: Summary) -> Summary:
        """The range that contains both."""
        return {"min": min(a["min"], b["min"]), "max": max(a["max"], b["max"])}

    def result(self, summary: Summary) -> tuple[float, float]:
        """``(min, max)``."""
        if summary["min"] > summary["max"]:
            return math.nan, math.nan
        return summary["min"], summary["max"]


@dataclass(frozen=True)
class Moments(Metric):
    """Count, mean and variance without cancellation, even if the mean is large compared with the spread.

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances":
    ``M2 = M2_a + M2_b + d^2 n_a n_b / n`` with ``d = mean_b - mean_a``. Works on all columns of ``(n, ...)`` at once. Not additive.
    """

    additive: ClassVar[bool] = False

    def zero(self) -> Summary:
        """The empty summary."""
        return {"n": 0.0, "mean": 0.0, "m2": 0.0}

    def of(self, values: ArrayLike) -> Summary:
        """Summarise rows, ``(n, ...)``."""
        x = np.asarray(values, dtype=np.float64)
        if not len(x):
            return self.zero()
        mean = x.mean(axis=0)
        return {"n": float(len(x)), "mean": mean[()], "m2": ((x - mean) ** 2).sum(axis=0)[()]}

    def merge(self, a: Summary, b: Summary) -> Summary:
        """The moments of both data."""
        n = a["n"] + b["n"]
        if n == 0:
            return self.zero()
        distance, share = b["mean"] - a["mean"], b["n"] / n
        return {
            "n": n,
            "mean": a["mean"] + distance * share,
            "m2": a["m2"] + b["m2"] + distance * distance * a["n"] * share,
        }

    def result(self, summary: Summary) -> dict[str, Any]:
        """``n``, ``mean``, ``variance`` (over n), ``std``, and the unbiased ``sample_variance`` (over n - 1)."""
        n = summary["n"]
        if n == 0:
            return {"n": 0, "mean": math.nan, "variance": math.nan, "std": math.nan, "sample_variance": math.nan}
        variance = summary["m2"] / n
        sample = summary["m2"] / (n - 1) if n > 1 else math.nan
        return {
            "n": int(n), "mean": summary["mean"], "variance": variance, "std": np.sqrt(variance), "sample_variance": sample
        }  # fmt: skip


@dataclass(frozen=True)
class Histogram(Metric):
    """Counts in equal bins of ``[low, high]``: a distribution and its quantiles, from sums alone.

    Numbers outside the range count in the first or last bin. If all numbers are inside, a quantile is off by at most one bin's width,
    ``(high - low) / bins``.

    Attributes:
        low: lower end of the first bin.
        high: upper end of the last bin.
        bins: number of bins.
    """

    low: float = 0.0
    high: float = 1.0
    bins: int = 50

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"low={self.low}, high={self.high}", where="Histogram", remedy="use finite low < high")
        if self.bins < 1:
            raise ConfigError(f"bins={self.bins}", where="Histogram", remedy="use at least 1")

    def zero(self) -> Summary:
        """Empty bins."""
        return {"counts": np.zeros(self.bins)}

    def of(self, values: ArrayLike, weights: ArrayLike = 1.0) -> Summary:
        """Summarise numbers, ``(n,)``, with weights, ``(n,)`` or one for all."""
        x = np.ravel(np.asarray(values, dtype=np.float64))
        place = ((x - self.low) / (self.high - self.low) * self.bins).clip(0, self.bins - 1).astype(np.int64)
        w = np.broadcast_to(np.asarray(weights, dtype=np.float64), x.shape)
        return {"counts": np.bincount(place, weights=w, minlength=self.bins)}

    @property
    def edges(self) -> NDArray[np.float64]:
        """The ends of the bins, ``(bins + 1,)``."""
        return np.linspace(self.low, self.high, self.bins + 1)

    def result(self, summary: Summary) -> NDArray[np.float64]:
        """The counts, ``(bins,)``."""
        return np.asarray(summary["counts"], dtype=np.float64)

    def quantile(self, summary: Summary, q: float) -> float:
        """The number below which a share ``q`` lies, interpolated within its bin; NaN if nothing was counted."""
        if not 0.0 <= q <= 1.0:
            raise ConfigError(f"q={q}", where="Histogram.quantile", remedy="use a share from 0 to 1")
        counts = self.result(summary)
        total = counts.sum()
        if not total > 0:
            return math.nan
        below = np.concatenate([[0.0], np.cumsum(counts)])
        place = int(np.clip(np.searchsorted(below, q * total, side="left") - 1, 0, self.bins - 1))
        while counts[place] == 0:  # q = 0 may hit empty bins before the first number
            place += 1
        inside = (q * total - below[place]) / counts[place]
        return float(self.edges[place] + max(0.0, inside) * (self.high - self.low) / self.bins)

    def tail_mean(self, summary: Summary, share: float, *, highest: bool = False) -> float:
        """The mean over the lowest (or highest) share, with each number taken as the middle of its bin."""
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"share={share}", where="Histogram.tail_mean", remedy="use a share in (0, 1]")
        counts = self.result(summary)
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        if highest:
            counts, middles = counts[::-1], middles[::-1]
        wanted = share * counts.sum()
        if not wanted > 0:
            return math.nan
        before = np.concatenate([[0.0], np.cumsum(counts)[:-1]])
        taken = np.clip(wanted - before, 0.0, counts)
        return float((taken * middles).sum() / taken.sum())
