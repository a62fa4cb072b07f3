"""How well features fall into clusters: the gap statistic, by which FADA weighs its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["cluster", "dispersion", "gain_weights"]


def cluster(features: Any, k: int, rng: np.random.Generator, iterations: int = 20) -> NDArray[np.int64]:
    """Return the cluster of each row, by k-means.

    Args:
        features: ``(n, D)``, at least ``k`` rows.
        k: number of clusters.
        rng: the random stream of the first centres.
        iterations: the largest number of iterations.

    Raises:
        DataError: fewer rows than clusters.
    """
    from atoll.stages.coded.kmeans import codebook, nearest

    rows = np.asarray(features, dtype=np.float64)
    if not 1 <= k <= len(rows):
        raise DataError(
            f"{k} clusters of {len(rows)} rows", where="cluster", remedy="use 1 to as many as there are rows"
        )
    return np.asarray(nearest(rows, codebook(rows, k, rng, iterations)), dtype=np.int64)


def dispersion(features: Any, clusters: Any, *, squared: bool = False) -> float:
    """Return the gap statistic's within-cluster dispersion, ``I = sum_r 1/(2 n_r) sum_{i,j in C_r} d(z_i, z_j)``; low if the features form tight clusters.

    As printed (eq. 100 of Jin et al. 2023) ``d`` is the distance. With ``squared=True`` it is the squared distance, as in Tibshirani, Walther and Hastie
    2001, eq. 1-2: ``I`` is then the scatter ``sum_i ||z_i - mean of its cluster||^2``.

    Args:
        features: ``(n, D)``.
        clusters: the cluster of each row, ``(n,)``.
        squared: use squared distances.

    Raises:
        DataError: there is not one cluster for each row.
    """
    rows, owner = np.asarray(features, dtype=np.float64), np.asarray(clusters)
    if rows.ndim != 2 or owner.shape != (len(rows),):
        raise DataError(
            f"features {rows.shape} in clusters {owner.shape}",
            where="dispersion",
            remedy="give one row and one cluster for each example",
        )
    total = 0.0
    for r in np.unique(owner):
        inside = rows[owner == r]
        if squared:
            total += float(((inside - inside.mean(axis=0)) ** 2).sum())
        else:
            total += sum(float(np.sqrt(((inside - z) ** 2).sum(axis=1)).sum()) for z in inside) / (2 * len(inside))
    return total


def gain_weights(before: Any, after: Any) -> NDArray[np.float64]:
    """Return the weight of each source, ``softmax_i(I_i^{r-1} - I_i^r)``: sources that make the target's clusters tighter count more.

    Eq. 101 of Jin et al. 2023, after FADA (Peng et al. 2020, "Federated Adversarial Domain Adaptation"). Positive, with sum 1.

    Args:
        before: the target's dispersion before it learned from each source, ``(S,)``.
        after: the same afterwards, ``(S,)``.

    Raises:
        ConfigError: the two differ in length, or a number is not finite.
    """
    gain = np.asarray(before, dtype=np.float64) - np.asarray(after, dtype=np.float64)
    if gain.ndim != 1 or not gain.size or not np.isfinite(gain).all():
        raise ConfigError(f"gains {gain}", where="gain_weights", remedy="give two finite numbers for each source")
    raised = np.exp(gain - gain.max())
    return np.asarray(raised / raised.sum())
