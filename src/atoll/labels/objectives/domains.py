"""Features of two domains: what tells them apart, and what brings them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "certainty",
    "classifier_discrepancy",
    "conditioned",
    "coral",
    "domain_loss",
    "gaussian_mmd",
    "linear_mmd",
    "projections",
    "reverse_gradient",
    "sliced_quantiles",
    "transfer_bound",
    "wasserstein",
]

# Adversarial alignment: a discriminator tells domains apart, and the features are trained to fool it.


Tensor = torch.Tensor


def reverse_gradient(x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Return ``x`` unchanged, with a gradient of ``-scale``.

    Ganin et al. 2016, "Domain-Adversarial Training of Neural Networks", eq. 16-17. It is written with plain operations, so it can be traced, vectorised
    and differentiated like any other.

    Args:
        x: finite, of any shape.
        scale: weight of the adversarial gradient.
    """
    held = x.detach()
    return held - scale * (x - held)


def domain_loss(scores: Tensor, source: Tensor, power: int = 1) -> Tensor:
    """Return the discriminator's loss of each example, ``L^p / p`` with ``L = -s log D - (1 - s) log(1 - D)``.

    ``D = sigmoid(score)`` is the probability of the source domain. ``p = 1`` is DANN's loss (Ganin et al. 2016, eq. 7); ``p = 2`` is the squared loss of
    FADE (Hong et al. 2021, "Federated Adversarial Debiasing for Fair and Transferable Representations"), which reacts more to large losses: its slope
    is ``L`` times as steep.

    Args:
        scores: logits, ``(B,)`` or ``(B, 1)``.
        source: 1 for a row of a source domain, 0 for one of the target, ``(B,)``.
        power: ``p``, at least 1.

    Raises:
        ConfigError: the power is below 1.
        DataError: there is not one score for each row.
    """
    if power < 1:
        raise ConfigError(f"power={power}", where="domain_loss", remedy="use 1 (DANN), or 2 (FADE)")
    if scores.numel() != source.numel():
        raise DataError(
            f"scores {tuple(scores.shape)} for {source.numel()} rows",
            where="domain_loss",
            remedy="end the discriminator in one output: nn.Linear(..., 1)",
        )
    flat = scores.reshape(source.shape)
    loss = F.softplus(flat) - source.to(flat.dtype) * flat
    return loss if power == 1 else loss**power / power


def conditioned(features: Tensor, logits: Tensor) -> Tensor:
    """Return what a conditional discriminator looks at: the outer product of each row's class probabilities and its features.

    ``out[b, c D + d] = softmax(logits_b)_c features_bd`` (Long et al. 2018, "Conditional Adversarial Domain Adaptation", eq. 4). The probabilities pass no
    gradient on.

    Args:
        features: ``(B, D)``.
        logits: ``(B, C)``.

    Returns:
        ``(B, C D)``.

    Raises:
        DataError: the two have different numbers of rows, or are no matrices.
    """
    if features.dim() != 2 or logits.dim() != 2 or len(features) != len(logits):
        raise DataError(
            f"features {tuple(features.shape)} and logits {tuple(logits.shape)}",
            where="conditioned",
            remedy="give one row of each for each example: flatten the features",
        )
    chances = logits.detach().softmax(1)
    return (chances.unsqueeze(2) * features.unsqueeze(1)).flatten(1)


def certainty(logits: Tensor) -> Tensor:
    """Return the weight of each example at a conditional discriminator, ``1 + exp(-H)``: between 1 and 2, more for sure predictions.

    ``H = -sum_c p_c log p_c`` is the entropy of the prediction in nats (Long et al. 2018, eq. 9). Weights pass no gradient on.

    Args:
        logits: ``(B, C)``.

    Returns:
        ``(B,)``.
    """
    log_p = logits.detach().log_softmax(1)
    return 1.0 + (log_p.exp() * log_p).sum(1).exp()


# The discrepancy of two classifiers, which finds target rows unlike the source.


def classifier_discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Return how far two classifiers' probabilities are apart, for each example: ``1/C sum_c |p_1c - p_2c|``, between 0 and ``2/C``.

    Saito et al. 2018, "Maximum Classifier Discrepancy for Unsupervised Domain Adaptation", eq. 2. Its training takes turns: the classifiers are trained to
    maximise it on target rows while the features are held, then the features to minimise it while the classifiers are held.

    Args:
        first: logits of the first classifier, ``(B, C)``.
        second: of the second, ``(B, C)``.

    Raises:
        DataError: the shapes differ.
    """
    if first.shape != second.shape or first.dim() != 2:
        raise DataError(
            f"logits {tuple(first.shape)} and {tuple(second.shape)}",
            where="classifier_discrepancy",
            remedy="give both classifiers the same rows and as many outputs",
        )
    return (first.softmax(1) - second.softmax(1)).abs().mean(1)


# Distances between the features of two batches, by their moments: each is one number for two batches, not a loss for each example.


def linear_mmd(source: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of two batches' means, ``||mean f(X_S) - mean f(X_T)||^2``: the maximum mean discrepancy of the linear kernel.

    Gretton et al. 2012, "A Kernel Two-Sample Test", eq. 3, with ``k(x, y) = <x, y>``. It needs only the sums of two batches, so parties can add up
    ciphertexts of them.

    Args:
        source: ``(n, D)``.
        target: ``(m, D)``.

    Raises:
        DataError: a batch is empty, or they have different numbers of features.
    """
    _require_two(source, target, 1, "linear_mmd")
    return ((source.mean(0) - target.mean(0)) ** 2).sum()


def gaussian_mmd(source: Tensor, target: Tensor, bandwidths: Sequence[float] = (1.0,)) -> Tensor:
    """Return the squared maximum mean discrepancy under a sum of Gaussian kernels, never negative.

    ``sum_ij k(s_i, s_j)/n^2 + sum_ij k(t_i, t_j)/m^2 - 2 sum_ij k(s_i, t_j)/(nm)`` with ``k(x, y) = sum_b exp(-||x - y||^2 / (2 b^2))`` (Gretton et al.
    2012, eq. 5). Every pair of rows meets, so it can only be computed where the rows of both are.

    Args:
        source: ``(n, D)``.
        target: ``(m, D)``.
        bandwidths: the ``b``, in units of the features.

    Raises:
        DataError: a batch is empty, or they have different numbers of features.
    """
    _require_two(source, target, 1, "gaussian_mmd")

    def mean_kernel(x: Tensor, y: Tensor) -> Tensor:
        squares = ((x.unsqueeze(1) - y.unsqueeze(0)) ** 2).sum(2)
        return torch.stack([torch.exp(-squares / (2.0 * b * b)).mean() for b in bandwidths]).sum()

    return mean_kernel(source, source) + mean_kernel(target, target) - 2.0 * mean_kernel(source, target)


def coral(source: Tensor, target: Tensor) -> Tensor:
    """Return the distance of two batches' covariances, ``||C_S - C_T||_F^2 / (4 D^2)``.

    Sun and Saenko 2016, "Deep CORAL", eq. 1. The covariances are unbiased: divided by ``n - 1``.

    Args:
        source: ``(n, D)``, at least two rows.
        target: ``(m, D)``, at least two rows.

    Raises:
        DataError: a batch has fewer than two rows, or they have different numbers of features.
    """
    _require_two(source, target, 2, "coral")

    def covariance(x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        return centred.T @ centred / (len(x) - 1)

    return ((covariance(source) - covariance(target)) ** 2).sum() / (4.0 * source.shape[1] ** 2)


def _require_two(source: Tensor, target: Tensor, least: int, where: str) -> None:
    if source.dim() != 2 or target.dim() != 2 or source.shape[1] != target.shape[1]:
        raise DataError(
            f"features {tuple(source.shape)} and {tuple(target.shape)}",
            where=where,
            remedy="give both batches as matrices with the same number of features",
        )
    if min(len(source), len(target)) < least:
        raise DataError(
            f"batches of {len(source)} and {len(target)} rows",
            where=where,
            remedy=f"give at least {least} rows of each",
        )


# Wasserstein distances between domains, and the bound on what a transfer costs.


Array = Any


def projections(features: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return random directions of length 1, uniform on the sphere, ``(features, count)``."""
    drawn = rng.normal(size=(features, count))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=0))


def sliced_quantiles(features: Array, directions: Array, levels: int, least: int = 1) -> NDArray[np.float64]:
    """Return quantiles of the features along each direction, ``(levels, count)``: what a party tells about its domain.

    Level ``l`` is the mean of the sorted projections between the shares ``l / levels`` and ``(l + 1) / levels``, so that a value stands for ``n / levels`` rows.

    Args:
        features: ``(n, D)``.
        directions: from `projections`, ``(D, count)``.
        levels: how many quantiles.
        least: the smallest number of rows that a value may stand for.

    Raises:
        DataError: fewer rows than ``levels * least``, or other features than the directions have.
    """
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(directions):
        raise DataError(
            f"features {rows.shape} along directions of {len(directions)} numbers",
            where="sliced_quantiles",
            remedy="give one row for each example, as wide as the directions",
        )
    if levels < 1 or len(rows) < levels * least:
        raise DataError(
            f"{len(rows)} rows for {levels} levels of at least {least} rows",
            where="sliced_quantiles",
            remedy="use fewer levels: each value then stands for more rows",
        )
    ordered = np.sort(rows @ directions, axis=0)
    sums = np.concatenate([np.zeros((1, ordered.shape[1])), np.cumsum(ordered, axis=0)])
    at = np.linspace(0.0, len(rows), levels + 1)
    low = np.minimum(np.floor(at).astype(np.int64), len(rows) - 1)
    ends = (
        sums[low] + (at - low)[:, None] * ordered[low]
    )  # the integral of the quantile function, which is linear between rows
    return np.asarray(np.diff(ends, axis=0) * (levels / len(rows)))


def wasserstein(first: Array, second: Array, features: int) -> float:
    """Return an estimate of the Wasserstein-1 distance of two domains from their `sliced_quantiles`, in units of the features.

    ``W ~ c_D mean_directions 1/levels sum_l |q_l - q'_l|``. Along one direction the sum is the exact distance of what the quantiles describe. The mean
    over directions is the sliced distance (Bonneel et al. 2015); ``c_D = sqrt(pi) Gamma((D + 1)/2) / Gamma(D/2)`` makes it exact for a shift. It needs no
    row of either domain.

    Args:
        first: ``(levels, count)``.
        second: the same of the other domain, along the same directions.
        features: ``D``.

    Raises:
        DataError: the shapes differ.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 2:
        raise DataError(
            f"quantiles {one.shape} and {other.shape}",
            where="wasserstein",
            remedy="take both along the same directions, with as many levels",
        )
    shift = math.sqrt(math.pi) * math.exp(math.lgamma((features + 1) / 2) - math.lgamma(features / 2))
    return float(shift * np.abs(one - other).mean())


def transfer_bound(error: float, distance: float, *, lipschitz: float = 1.0, scale: float = 1.0) -> float:
    """Return the bound on the error after a transfer, ``scale (error + 2 lipschitz distance)``: eq. 99 of Jin et al. 2023, after FRuDA (Gan et al. 2022).

    Args:
        error: of the collaborator's model at the collaborator, as a mean absolute difference.
        distance: Wasserstein-1 between the two domains.
        lipschitz: how much the models' outputs change with a unit of the features.
        scale: how much larger cross-entropy is than the mean absolute difference.

    Raises:
        ConfigError: a number is negative or not finite.
    """
    given = {"error": error, "distance": distance, "lipschitz": lipschitz, "scale": scale}
    for name, value in given.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"{name}={value}", where="transfer_bound", remedy="use a finite number, 0 or more")
    return scale * (error + 2.0 * lipschitz * distance)
