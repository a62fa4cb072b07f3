"""Matching of representation profiles: the distance of a client's data from the server's, as a model sees both.

W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, chapter 5 (FedProf). A *profile* ``{"mean": (q,), "var": (q,)}`` contains the mean and
variance of ``q`` elements of a model's hidden representation over some rows, each modelled as a Gaussian ``N(mu_i, sigma_i^2)``; see
`atoll.torch.evaluate`.

* dissimilarity (Eq. 5.21): ``div(RP_k, RP*) = (1/q) sum_i KL(N_i^k || N_i^*)``, with
* ``KL(N || N*) = ln(sigma*/sigma) + (sigma^2 + (mu - mu*)^2) / (2 sigma*^2) - 1/2``. Eq. 5.22 prints it without the ``-1/2``, which Eq. B.1 has;
* score (Eq. 5.25): ``lambda_k = exp(-alpha_k div_k)``, and a client is selected with probability ``lambda_k / sum lambda``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError

__all__ = ["FLOOR", "divergence", "gaussian_kl", "mean_weights", "plain_part", "selection_probabilities"]

FLOOR = 1e-6
"""The smallest variance: a neuron that is constant on some rows would otherwise have no Gaussian."""


def gaussian_kl(mean: Any, var: Any, other_mean: Any, other_var: Any) -> NDArray[np.float64]:
    """Return ``KL(N(mean, var) || N(other_mean, other_var))``, elementwise; variances must be positive."""
    mean, var, other_mean, other_var = (np.asarray(a, dtype=np.float64) for a in (mean, var, other_mean, other_var))
    apart = (mean - other_mean) ** 2
    return np.asarray(0.5 * (np.log(other_var) - np.log(var) + (var + apart) / other_var - 1.0))


def divergence(client: Tree, server: Tree, *, floor: float = FLOOR, printed: bool = False) -> float:
    """Return the dissimilarity of two profiles, ``(1/q) sum_i KL(N_i^client || N_i^server)``; 0 iff they are equal above the floor.

    Args:
        client: ``{"mean": (q,), "var": (q,)}``.
        server: the same, for the server's own data and the same model.
        floor: variances below it count as the floor, on both sides. A dead neuron, constant on all rows, has variance 0. Two profiles that
            agree on it then differ by 0 instead of ``0/0``, and one that does not is far away but not infinitely.
        printed: use the formula as the source prints it (Eq. 5.22), 1/2 larger; with equal ``alpha`` for all clients, selection is the same.

    Raises:
        ConfigError: the floor is not positive.
        DataError: the profiles differ in shape, or have numbers that are not means and variances.
    """
    if not (floor > 0 and np.isfinite(floor)):
        raise ConfigError(f"floor={floor}", where="divergence", remedy="use a small positive number")
    (mean, var), (other_mean, other_var) = _columns(client, "the client's"), _columns(server, "the server's")
    if mean.shape != other_mean.shape:
        raise DataError(
            f"the profiles have {mean.size} and {other_mean.size} elements",
            where="divergence",
            remedy="profile the same layer of the same model",
        )
    each = gaussian_kl(mean, np.maximum(var, floor), other_mean, np.maximum(other_var, floor))
    # Rounding can make the result for equal profiles slightly negative.
    return max(0.0, float(each.mean())) + 0.5 * printed


def plain_part(var: Any, other_var: Any, floor: float = FLOOR) -> float:
    """Return the part of a divergence from variances only: ``(1/q) sum_i [ln(v*_i / v_i) + v_i / v*_i - 1] / 2`` (Eq. B.2), each at least the floor."""
    v, other = (np.maximum(np.asarray(a, dtype=np.float64), floor) for a in (var, other_var))
    return float((np.log(other / v) + v / other - 1.0).mean() / 2)


def mean_weights(other_var: Any, floor: float = FLOOR) -> NDArray[np.float64]:
    """Return ``w`` for the rest of a divergence, ``sum_i w_i (mu_i - mu*_i)^2``: ``1 / (2 q v*_i)`` (Eq. B.3)."""
    var = np.maximum(np.asarray(other_var, dtype=np.float64), floor)
    return np.asarray(1.0 / (2.0 * var.size * var))


def selection_probabilities(divergences: Sequence[float] | NDArray[Any], alpha: Any = 10.0) -> NDArray[np.float64]:
    """Return ``lambda_k / sum lambda`` with ``lambda_k = exp(-alpha_k div_k)``.

    The smallest exponent is subtracted first. This changes nothing, and keeps large divergences from rounding all scores to zero.

    Args:
        divergences: one per client, ``(clients,)``.
        alpha: weight of a divergence, one number or one per client; 0 is uniform selection. 10 in the source's experiments.

    Raises:
        ConfigError: ``alpha`` is negative, not finite, or of another shape.
        DataError: there are no divergences, or some are not finite.
    """
    found = np.asarray(divergences, dtype=np.float64)
    weight = np.asarray(alpha, dtype=np.float64)
    if weight.shape not in ((), found.shape) or not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ConfigError(
            f"alpha={alpha!r} for {found.size} clients", where="selection_probabilities", remedy="use numbers >= 0"
        )
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise DataError(
            f"divergences {found!r}", where="selection_probabilities", remedy="give one finite number per client"
        )
    exponents = weight * found
    scores = np.exp(exponents.min() - exponents)
    return np.asarray(scores / scores.sum())


def _columns(profile: Tree, whose: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means and variances of a profile."""
    try:
        mean, var = (np.asarray(profile[name], dtype=np.float64) for name in ("mean", "var"))
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{whose} profile has no mean and var", where="divergence", remedy='ask for the report "profile"'
        ) from error
    right = mean.ndim == 1 and mean.shape == var.shape and mean.size > 0
    if not right or not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
        raise DataError(
            f"{whose} profile has means of shape {mean.shape} and variances of shape {var.shape}, or some are not finite or negative",
            where="divergence",
            remedy="give q means and q variances",
        )
    return mean, var
