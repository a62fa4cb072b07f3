"""Losses of linear models: exact ones, and those that a protocol puts in their place.

The margin of a row is ``m = x w + b``. Of the exact families ``r = dL/dm`` is ``m - y`` (least squares), ``1 / (1 + e^-m) - y`` (logistic), ``softmax(m) - [y = k]`` (multinomial)
and ``e^m - y`` (Poisson). Two others replace the logistic function:

* *Taylor's* loss of order 2 (Hardy et al. 2017, equation 4): ``L(m) = L(m_0) + L'(m_0) (m - m_0) + c (m - m_0)^2 / 2``. It is least squares with ``c (m - t)``, for targets t: of two
  classes around 0 ``c = 1/4, t = +-2``; of K classes, with the curvature ``1/K`` of the softmax at 0, ``t = K [y = k] - 1``; of Poisson around the log of the mean label ``c = mean``.
* *pieces* (Mohassel and Zhang 2017, SecureML, equation 7): ``f(m) = 0`` below -1/2, 1 above 1/2, and ``m + 1/2`` between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.trees.objectives import LOGISTIC, POISSON, SOFTMAX, SQUARED, TreeLoss

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FAMILIES", "LinearLoss", "Taylor", "family_objective"]

FAMILIES = {"least-squares": SQUARED, "logistic": LOGISTIC, "multinomial": SOFTMAX, "poisson": POISSON}
"""The name of a family, and that of its objective."""
_FLATTEST = 1e-3
"""Least curvature of a row of pieces: where most rows are beyond them, a step must still be bounded."""


def family_objective(family: str, found: TreeLoss) -> TreeLoss:
    """The objective of a family for labels whose kind is known.

    Raises:
        ConfigError: the labels are of another kind.
    """
    name = FAMILIES.get(family, found.name)
    if (SQUARED if name == POISSON else name) != found.name:
        kinds = {one: each for each, one in FAMILIES.items()}
        raise ConfigError(
            f"family={family!r} for labels of the family {kinds[found.name]!r}",
            where="VerticalLinear",
            remedy="use family='auto', or say what the labels are: task=",
        )
    return TreeLoss(name, found.outputs)


@dataclass(frozen=True)
class Taylor:
    """A loss of order 2: ``curvature (m - targets)^2 / 2``, with the targets in units of ``unit``.

    Attributes:
        targets: ``(rows, outputs)``.
        curvature: the same for all rows.
        unit: of a regression the labels' standard deviation, so that fixed-point numbers fit whatever the labels' unit.
    """

    targets: NDArray[np.float64]
    curvature: float
    unit: float = 1.0

    @classmethod
    def of(cls, objective: TreeLoss, y: NDArray[np.float64]) -> Taylor:
        """The expansion of an objective; of least squares the loss itself."""
        if objective.name == SQUARED:
            unit = float(np.std(y)) or 1.0
            return cls(y[:, None] / unit, 1.0, unit)
        if objective.name == LOGISTIC:
            return cls(4 * y[:, None] - 2, 0.25)
        if objective.name == SOFTMAX:
            return cls(objective.outputs * _one_hot(y, objective.outputs) - 1, 1 / objective.outputs)
        mean = float(np.mean(y))
        return cls(np.log(mean) + (y[:, None] - mean) / mean, mean)


@dataclass(frozen=True)
class LinearLoss:
    """A loss as a function of the margins of all rows.

    Attributes:
        objective: the family.
        y: labels as numbers, or codes of classes.
        pieces: whether SecureML's pieces replace the logistic function.
    """

    objective: TreeLoss
    y: NDArray[np.float64]
    pieces: bool = False

    def __post_init__(self) -> None:
        if self.objective.name == POISSON and (self.y.min() < 0 or not self.y.any()):
            raise DataError(
                "labels below 0, or all 0" if self.y.min() < 0 else "labels that are all 0",
                where="family='poisson'",
                remedy="use family='least-squares', or leave the rows out",
            )

    def loss(self, m: NDArray[np.float64]) -> float:
        """The sum over the rows."""
        name, y = self.objective.name, self.y
        if name == SQUARED:
            return float(((m[:, 0] - y) ** 2).sum()) / 2
        if name == POISSON:
            with np.errstate(over="ignore"):
                return float((np.exp(m[:, 0]) - y * m[:, 0]).sum())
        if name == SOFTMAX:
            top = m.max(axis=1)
            return float(
                (top + np.log(np.exp(m - top[:, None]).sum(axis=1)) - m[np.arange(len(m)), y.astype(int)]).sum()
            )
        if self.pieces:
            middle = np.clip(m[:, 0], -0.5, 0.5)
            return float(((middle + 0.5) ** 2 / 2 + np.maximum(m[:, 0] - 0.5, 0.0) - y * m[:, 0]).sum())
        return float((np.logaddexp(0.0, m[:, 0]) - y * m[:, 0]).sum())

    def residuals(self, m: NDArray[np.float64]) -> NDArray[np.float64]:
        """First derivatives by the margins, ``(rows, outputs)``."""
        if self.objective.name == SOFTMAX:
            return self._means(m) - _one_hot(self.y, m.shape[1])
        return self._means(m) - self.y[:, None]

    def curvatures(self, m: NDArray[np.float64]) -> NDArray[np.float64]:
        """Second derivatives by each margin, ``(rows, outputs)``."""
        p = self._means(m)
        if self.objective.name == SQUARED:
            return np.ones_like(m)
        if self.objective.name == POISSON:
            return p
        if self.pieces:
            return np.maximum((np.abs(m) < 0.5).astype(np.float64), _FLATTEST)
        return np.maximum(p * (1 - p), 1e-12)

    def bend(self, m: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
        """The matrix of second derivatives at the margins m, times u."""
        if self.objective.name != SOFTMAX:
            return self.curvatures(m) * u
        p = self._means(m)
        return np.asarray(p * (u - (p * u).sum(axis=1, keepdims=True)))

    def _means(self, m: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.pieces:
            return np.clip(m + 0.5, 0.0, 1.0)
        with np.errstate(over="ignore"):
            return np.asarray(self.objective.predict(m), np.float64)


def _one_hot(y: NDArray[Any], classes: int) -> NDArray[np.float64]:
    made = np.zeros((len(y), classes))
    made[np.arange(len(y)), y.astype(np.int64)] = 1.0
    return made
