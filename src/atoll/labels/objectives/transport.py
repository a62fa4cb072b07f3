"""Wasserstein distances between domains, and the bound on what a transfer costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["projections", "sliced_quantiles", "transfer_bound", "wasserstein"]

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
