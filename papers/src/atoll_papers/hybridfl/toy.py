"""The slack factors of Figure 4.4: twenty clients in regions of eleven and nine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atoll.learn.pacing.regions.slack import SlackEstimator

from .reference import HybridDevices, draw, simulate
from .setting import AEROFOIL

__all__ = ["TOY", "ToyTrace", "trace"]

TOY = replace(AEROFOIL, name="toy", clients=20, regions=2, rounds=100)
"""Section 4.4.2: speeds ``N(0.5, 0.1^2)``; bandwidth and data are as in Task 1, since the text leaves them out."""
_REGIONS, _RELIABLE, _SPREAD, _SHARE = (11, 9), (0.43, 0.57), 0.15, 0.3


@dataclass(frozen=True)
class ToyTrace:
    """A run of the toy, region by region.

    Attributes:
        theta: factors by round, ``(rounds, 2)``.
        truth: mean survival probability of each region's clients, ``(2,)``.
        survivors: ``|X_r| / N_r`` by round.
        asked: ``C_r`` as carried out, by round.
        quality: the surrogate ``q_r = |Psi_r| / (C N_r)``, by round.
        true_quality: ``|Psi_r| / |X_r|``, NaN if no client survived.
    """

    theta: NDArray[np.float64]
    truth: NDArray[np.float64]
    survivors: NDArray[np.float64]
    asked: NDArray[np.float64]
    quality: NDArray[np.float64]
    true_quality: NDArray[np.float64]


def trace(estimator: SlackEstimator, seed: int, rounds: int = 100) -> ToyTrace:
    """Run the toy with an estimator."""
    rng = np.random.default_rng(seed)
    devices = _devices(rng)
    run = simulate(TOY, devices, "HybridFL", _SHARE, rng, rounds=rounds, estimator=estimator)
    sizes = np.array(_REGIONS)
    truth = np.array([1 - devices.drop[devices.region == r].mean() for r in range(2)])
    quality = np.where(run.survived > 0, run.submitted / np.maximum(run.survived, 1), np.nan)
    return ToyTrace(
        run.theta, truth, run.survived / sizes, run.selected / sizes, run.submitted / (_SHARE * sizes), quality
    )


def _devices(rng: np.random.Generator) -> HybridDevices:
    """Clients whose reliability is ``N(mu_r, 0.15^2)``."""
    made = draw(TOY, 0.0, rng, np.array(_REGIONS))
    mean = np.array(_RELIABLE)[made.region]
    return replace(made, drop=1 - np.clip(rng.normal(mean, _SPREAD), 0.0, 1.0))
