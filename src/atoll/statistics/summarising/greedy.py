"""Points that stand for a distribution: each next one lowers the maximum mean discrepancy the most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError

__all__ = ["ChosenPoints", "choose_points", "discrepancy"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ChosenPoints:
    """Points and their weights.

    Attributes:
        points: rows of the candidates, in the order of choice, ``(points,)``.
        weights: their weights; they sum to 1.
        discrepancies: squared discrepancy after each choice; it never grows.
    """

    points: NDArray[np.int64]
    weights: Array
    discrepancies: list[float]


@checked_call
def choose_points(features: Any, target: Any, size: int) -> ChosenPoints:
    """Choose points greedily.

    ``||target - sum_i w_i phi(z_i)||^2`` is the squared maximum mean discrepancy of the weighted points to a distribution with mean embedding ``target``. Each step
    moves a share ``g`` of the weight to one more point; point and share minimise the discrepancy (kernel herding with line search: Bach, Lacoste-Julien, Obozinski
    2012). So it never grows, whatever noise the target has; with equal weights it can.

    Args:
        features: of the candidates, ``(candidates, features)``.
        target: mean embedding of the distribution, ``(features,)``.
        size: number of points.

    Raises:
        ConfigError: there are fewer candidates than points, or shapes differ.
    """
    phi, goal = np.asarray(features, np.float64), np.asarray(target, np.float64)
    if phi.ndim != 2 or goal.shape != phi.shape[1:] or not 1 <= size <= len(phi):
        raise ConfigError(
            f"size={size}, {phi.shape} features of candidates, a target of shape {goal.shape}",
            where="choose_points",
            remedy="choose 1 to all candidates, and give the target as many features as they have",
        )
    first = int(np.argmin(((phi - goal) ** 2).sum(axis=1)))
    points, weights, mean = [first], np.ones(1), phi[first].copy()
    found = [float(((goal - mean) ** 2).sum())]
    free = np.ones(len(phi), bool)
    free[first] = False
    for _ in range(size - 1):
        way, rest = phi - mean, goal - mean
        lengths, gains = (way**2).sum(axis=1), way @ rest
        share = np.clip(gains / np.where(lengths > 0, lengths, 1.0), 0.0, 1.0)
        drop = np.where(free, 2 * share * gains - share**2 * lengths, -np.inf)
        at = int(np.argmax(drop))
        free[at] = False
        weights = np.append(weights * (1 - share[at]), share[at])
        points.append(at)
        mean = mean + share[at] * way[at]
        found.append(float(((goal - mean) ** 2).sum()))
    return ChosenPoints(np.array(points), weights, found)


@checked_call
def discrepancy(one: Any, other: Any) -> float:
    """Maximum mean discrepancy of two mean embeddings: their distance."""
    return float(np.linalg.norm(np.asarray(one) - np.asarray(other)))
