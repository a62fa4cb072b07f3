"""Noise of which every party adds a share, so that nobody knows it and all of it is in the sum."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.requests.island import Secret
from atoll.privacy.discrete import add_gaussian, snap

__all__ = ["add_gaussian_share", "add_radial_share", "gradient_deviation", "output_scale"]

Array = NDArray[np.float64]


@checked_call
def output_scale(parties: int, smallest: int, ridge: float, epsilon: float, lipschitz: float = 1.0) -> float:
    """Scale of the noise on a mean of minimisers: ``2 G / (m n_1 lambda epsilon)``, for a density ``~ exp(-||b|| / scale)``.

    Replacing one of ``n`` examples moves the minimiser of a ``lambda``-strongly convex objective with ``G``-Lipschitz losses by at most ``2 G / (n lambda)``, and
    the mean of ``m`` minimisers by ``m`` times less: Jayaraman, Wang, Evans, Gu 2018, "Distributed Learning without Distress", theorem 3.1.

    Args:
        parties: ``m``.
        smallest: examples of the smallest party, ``n_1``.
        ridge: ``lambda``.
        epsilon: positive.
        lipschitz: ``G``.

    Raises:
        ConfigError: a value is not positive.
    """
    _require_positive(parties=parties, smallest=smallest, ridge=ridge, epsilon=epsilon, lipschitz=lipschitz)
    return 2 * lipschitz / (parties * smallest * ridge * epsilon)


@checked_call
def gradient_deviation(
    parties: int, smallest: int, rounds: int, epsilon: float, delta: float, lipschitz: float = 1.0
) -> float:
    """Standard deviation of the noise on each mean gradient: ``sqrt(8 G^2 T ln(1 / delta)) / (m n_1 epsilon)``. The same, theorem 3.2.

    Args:
        parties: ``m``.
        smallest: examples of the smallest party, ``n_1``.
        rounds: gradients that are released, ``T``.
        epsilon: of all of them.
        delta: in (0, 1).
        lipschitz: ``G``.

    Raises:
        ConfigError: a value is not positive, or delta is not in (0, 1).
    """
    _require_positive(parties=parties, smallest=smallest, rounds=rounds, epsilon=epsilon, lipschitz=lipschitz)
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta}", where="gradient_deviation", remedy="use delta in (0, 1)")
    return math.sqrt(8 * rounds * math.log(1 / delta)) * lipschitz / (parties * smallest * epsilon)


def add_gaussian_share(
    values: Array, secret: Secret, deviation: float, parties: int, sensitivity: float | None = None
) -> Array:
    """Return the values with one of ``parties`` shares of ``N(0, deviation^2 I)``, on a lattice that all parties have.

    Args:
        values: a vector.
        secret: of the party.
        deviation: of the noise of all parties.
        parties: how many share it.
        sensitivity: how far one unit moves the sum of all, which rounding adds to; see `add_gaussian`.
    """
    each = math.sqrt(parties)
    return add_gaussian(
        values, deviation / each, secret.generator(), None if sensitivity is None else sensitivity / each
    )


def add_radial_share(values: Array, secret: Secret, scale: float, parties: int) -> Array:
    """Return the values with one of ``parties`` shares of noise with density ``~ exp(-||b|| / scale)``, rounded to a lattice.

    Its characteristic function ``(1 + scale^2 ||t||^2)^(-(dim + 1) / 2)`` is the product of ``parties`` equal ones. Each is that of ``sqrt(V) N(0, I)`` with
    ``V ~ Gamma((dim + 1) / (2 parties), 2 scale^2)``. No exact sampler of it is known: the numbers are floating-point, and only rounding hides their last bits.
    """
    draw, dim = secret.generator(), len(values)
    spread = draw.gamma((dim + 1) / (2 * parties), 2 * scale**2)
    return snap(values + math.sqrt(spread) * draw.normal(size=dim), scale)


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value}", where="noise of a secure sum", remedy="use a finite number above 0")
