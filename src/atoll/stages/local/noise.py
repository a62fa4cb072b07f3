"""Laplace and Gaussian noise at each client, for everybody who sees its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.core.event import Event, Gaussian, Laplace
from atoll.privacy.discrete import GaussianLattice, LaplaceLattice, clip_rows, words_of

from .base import Randomiser, Rows, require_positive

__all__ = ["LocalGaussian", "LocalLaplace"]


@dataclass(frozen=True)
class LocalLaplace(Randomiser):
    """Scale the value down to an L1 norm of at most ``bound``, and add Laplace noise of scale ``2 bound / epsilon`` to each entry.

    Two values of L1 norm ``bound`` are at most ``2 bound`` apart, so the release is ``epsilon``-private against everybody who sees it. Dwork, McSherry,
    Nissim, Smith 2006, "Calibrating Noise to Sensitivity in Private Data Analysis". The noise is discrete Laplace on a lattice of a power of two, and the value is
    rounded to the lattice towards zero, so that its norm stays bounded: no last bits tell it (Mironov 2012). See `atoll.privacy.discrete.additive`.

    Attributes:
        bound: largest L1 norm.
        epsilon: of one release.
        unit: ``"user"`` or ``"island"``.
    """

    bound: float = 1.0
    epsilon: float = 1.0
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "bound", "epsilon")

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip and add noise."""
        return _noisy(rows, self.bound, 1, LaplaceLattice(2 * self.bound / self.epsilon), draws)

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one Laplace release."""
        del sensitivity
        return (Laplace(unit=self.unit, epsilon=self.epsilon),)


@dataclass(frozen=True)
class LocalGaussian(Randomiser):
    """Scale the value down to an L2 norm of at most ``bound``, and add ``N(0, (2 bound multiplier)^2)`` to each entry.

    Two values of norm ``bound`` are at most ``2 bound`` apart, so each reply is a Gaussian release of noise multiplier ``multiplier``. `GaussianNoise` behind
    `Clip` counts neighbours by adding or removing a client, whose reply then is missing; that says nothing to somebody who sees single replies.

    Attributes:
        bound: largest L2 norm.
        multiplier: noise over ``2 bound``.
        unit: ``"user"`` or ``"island"``.
    """

    bound: float = 1.0
    multiplier: float = 1.0
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "bound", "multiplier")

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip and add noise."""
        return _noisy(rows, self.bound, 2, GaussianLattice(2 * self.bound * self.multiplier), draws)

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one Gaussian release."""
        del sensitivity
        return (Gaussian(unit=self.unit, noise_multiplier=self.multiplier),)


def _noisy(
    rows: Rows, bound: float, norm: int, lattice: LaplaceLattice | GaussianLattice, draws: list[np.random.Generator]
) -> Rows:
    """Clip each row on the lattice, and add the client's noise."""
    found = clip_rows(rows, bound, norm, lattice.step)
    for row, draw in zip(found, draws, strict=True):
        row += lattice.draw(words_of(draw), len(row))
    found *= lattice.step
    return found
