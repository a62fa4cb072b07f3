"""Clusters of features: the gap statistic, and mixtures of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree

__all__ = ["Mixture", "cluster", "dispersion", "fit_mixture", "gain_weights"]

# How well features fall into clusters: the gap statistic, by which FADA weighs its sources.


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
    from atoll.stages.coded.product import codebook, nearest

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


# Gaussian mixtures of features, by which a party weighs rows that are not its own.


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians with diagonal covariances.

    Attributes:
        shares: of the components, ``(K,)``, with sum 1.
        means: ``(K, D)``.
        variances: ``(K, D)``, positive.
    """

    shares: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]

    def message(self) -> Tree:
        """Return the mixture as a message."""
        return {"shares": self.shares, "means": self.means, "variances": self.variances}

    @classmethod
    def of(cls, message: Any) -> Mixture:
        """Return the mixture of a message, checked.

        Raises:
            DataError: it is no mixture.
        """
        try:
            made = cls(*(np.asarray(message[name], dtype=np.float64) for name in ("shares", "means", "variances")))
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(f"no mixture: {error}", where="Mixture", remedy="send Mixture.message()") from error
        k = len(made.shares) if made.shares.ndim == 1 else 0
        fits = k and made.means.ndim == 2 and made.means.shape == made.variances.shape and len(made.means) == k
        sound = fits and all(np.isfinite(part).all() for part in (made.shares, made.means, made.variances))
        if not sound or made.variances.min() <= 0 or made.shares.min() < 0 or abs(made.shares.sum() - 1.0) > 1e-6:
            raise DataError(
                f"no mixture: shares {made.shares.shape}, means {made.means.shape}, variances {made.variances.shape}",
                where="Mixture",
                remedy="send shares with sum 1, and finite means and positive variances of the same shape",
            )
        return made

    def log_density(self, features: Any) -> NDArray[np.float64]:
        """Return ``log p(z)`` of each row, ``(n,)``."""
        return np.asarray(_logsumexp(self._joint(np.asarray(features, dtype=np.float64))))

    def weights(self, features: Any, temperature: float | None = None) -> NDArray[np.float64]:
        """Return how much each of another party's rows counts here, ``(n,)``, with mean 1: ``w_i ~ p(z_i)^(1/T)``.

        Rows that are unlikely here get little weight (GMM weighting of DualAdapt, Yao et al. 2022). The survey names no temperature ``T``; by default it
        is the number of features, so that the weight follows the mean log-density of a feature and does not rest on one row.

        Args:
            features: ``(n, D)``.
            temperature: ``T``, above 0.
        """
        scaled = self.log_density(features) / (self.means.shape[1] if temperature is None else temperature)
        raised = np.exp(scaled - scaled.max())
        return np.asarray(raised / raised.mean())

    def _joint(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``log(share_k N(z | k))``, ``(n, K)``."""
        inverse = 1.0 / self.variances
        squares = rows**2 @ inverse.T - 2.0 * rows @ (self.means * inverse).T + (self.means**2 * inverse).sum(axis=1)
        constant = np.log(self.variances).sum(axis=1) + rows.shape[1] * math.log(2.0 * math.pi)
        with np.errstate(divide="ignore"):  # the share of a component may be 0
            return np.asarray(np.log(self.shares) - 0.5 * (squares.clip(min=0.0) + constant))


def fit_mixture(
    features: Any, components: int, rng: np.random.Generator, *, iterations: int = 50, floor: float = 1e-6
) -> Mixture:
    """Return the mixture that expectation maximisation finds, from k-means clusters.

    Dempster, Laird and Rubin 1977. It ends once the mean log-likelihood rises by less than ``1e-3``.

    Args:
        features: ``(n, D)``, at least as many rows as components.
        components: ``K``.
        rng: the random stream of the first clusters.
        iterations: the largest number of iterations.
        floor: added to every variance, in squared units of the features.

    Raises:
        DataError: fewer rows than components.
    """
    rows = np.asarray(features, dtype=np.float64)
    resp = np.eye(components)[cluster(rows, components, rng)]
    last = -math.inf
    mixture = _maximise_likelihood(rows, resp, floor)
    for _ in range(iterations):
        joint = mixture._joint(rows)
        log_p = _logsumexp(joint)
        mixture = _maximise_likelihood(rows, np.exp(joint - log_p[:, None]), floor)
        mean = float(log_p.mean())
        if mean - last < 1e-3:
            break
        last = mean
    return mixture


def _maximise_likelihood(rows: NDArray[np.float64], resp: NDArray[np.float64], floor: float) -> Mixture:
    """Return the most likely mixture, given the share of each component in each row."""
    counts = resp.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = resp.T @ rows / counts[:, None]
    variances = (resp.T @ rows**2 / counts[:, None] - means**2).clip(min=0.0) + floor
    return Mixture(counts / counts.sum(), means, variances)


def _logsumexp(values: NDArray[np.float64]) -> Any:
    top = values.max(axis=1)
    return top + np.log(np.exp(values - top[:, None]).sum(axis=1))
