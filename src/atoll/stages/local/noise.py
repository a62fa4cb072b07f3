"""Laplace and Gaussian noise at each client, for everybody who sees its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.core.event import Event, Gaussian, Laplace

from .base import Randomiser, Rows, require_positive

__all__ = ["LocalGaussian", "LocalLaplace"]


@dataclass(frozen=True)
class LocalLaplace(Randomiser):
    """Scale the value down to an L1 norm of at most ``bound``, and add Laplace noise of scale ``2 bound / epsilon`` to each entry.

    Two values of L1 norm ``bound`` are at most ``2 bound`` apart, so the release is ``epsilon``-private against everybody who sees it. Dwork, McSherry,
    Nissim, Smith 2006, "Calibrating Noise to Sensitivity in Private Data Analysis". The noise is floating-point.

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
        found = clipped(rows, self.bound, 1)
        for row, draw in zip(found, draws, strict=True):
            row += draw.laplace(0.0, 2 * self.bound / self.epsilon, len(row))
        return found

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
        found = clipped(rows, self.bound, 2)
        for row, draw in zip(found, draws, strict=True):
            row += draw.normal(0.0, 2 * self.bound * self.multiplier, len(row))
        return found

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one Gaussian release."""
        del sensitivity
        return (Gaussian(unit=self.unit, noise_multiplier=self.multiplier),)


def clipped(rows: Rows, bound: float, norm: int) -> Rows:
    """Scale each row down to a norm of at most ``bound``; rows that are not finite become zero, so that they stay bounded."""
    peak = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    usable = np.isfinite(peak)
    safe = np.where(usable & (peak > 0), peak, 1.0)
    part = np.where(usable, rows, 0.0) / safe
    length = np.linalg.norm(part, norm, axis=1, keepdims=True)  # of the row over its peak: squares do not overflow
    found: Rows = part * np.minimum(safe, bound / np.where(length > 0, length, 1.0))
    return found
