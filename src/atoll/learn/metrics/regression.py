"""Metrics of regression. If rows have several outputs, the metric is the mean over outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from atoll.core.algebra.metric import Summary
from atoll.core.errors import DataError

from .base import ScoreMetric, ratio, rows_of

__all__ = ["R2", "AbsoluteError", "RelativeAccuracy", "SquaredError"]


@dataclass(frozen=True)
class SquaredError(ScoreMetric):
    """``mse = (1/n) sum_i (y_i - z_i)^2`` and its root ``rmse``."""

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "squares": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return how many numbers were compared, and the sum of squared errors."""
        z, y = rows_of(scores, targets, "SquaredError")
        return {"n": float(z.size), "squares": float(((y - z) ** 2).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the mean and its root."""
        mse = ratio(summary["squares"], summary["n"])
        return {"mse": mse, "rmse": math.sqrt(mse) if mse == mse else mse}


@dataclass(frozen=True)
class AbsoluteError(ScoreMetric):
    """``mae = (1/n) sum_i |y_i - z_i|``."""

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "sum": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return how many numbers were compared, and the sum of errors."""
        z, y = rows_of(scores, targets, "AbsoluteError")
        return {"n": float(z.size), "sum": float(np.abs(y - z).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the mean error."""
        return {"mae": ratio(summary["sum"], summary["n"])}


@dataclass(frozen=True)
class R2(ScoreMetric):
    """``1 - sum_i (y_i - z_i)^2 / sum_i (y_i - mean y)^2``, averaged over outputs; NaN if the targets do not vary.

    The spread of the targets comes from their sum and sum of squares, so that summaries add up. If targets are far from 0 compared with their
    spread, set a ``center`` near their mean, or digits are lost.

    Attributes:
        center: subtracted from the targets before they are summed; does not change the result.
    """

    center: float = 0.0

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "sum": 0.0, "squares": 0.0, "errors": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and by output the sums of targets, of their squares and of squared errors."""
        z, y = rows_of(scores, targets, "R2")
        t = y - self.center
        return {
            "n": float(len(z)), "sum": t.sum(axis=0), "squares": (t**2).sum(axis=0), "errors": ((y - z) ** 2).sum(axis=0)
        }  # fmt: skip

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the coefficient of determination."""
        n = summary["n"]
        if not n:
            return {"r2": math.nan}
        spread = np.asarray(summary["squares"] - np.square(summary["sum"]) / n)
        if not (spread > 0).all():
            return {"r2": math.nan}
        return {"r2": float(np.mean(1.0 - summary["errors"] / spread))}


@dataclass(frozen=True)
class RelativeAccuracy(ScoreMetric):
    """``1 - (1/n) sum_i |(y_i - z_i) / max(y_i, z_i)|`` for targets > 0 (W. Wu 2021, Table 3.3).

    1 is perfect; a guess of 0 or less costs at least 1 for its row, so the value can be negative.
    """

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "sum": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return how many numbers were compared, and the sum of relative errors."""
        z, y = rows_of(scores, targets, "RelativeAccuracy")
        if y.size and not (y > 0).all():
            raise DataError(
                f"{int((y <= 0).sum())} targets are not above 0, where a relative error is undefined",
                where="RelativeAccuracy",
                remedy="use R2 or SquaredError",
            )
        return {"n": float(z.size), "sum": float(np.abs((y - z) / np.maximum(y, z)).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the accuracy."""
        return {"relative_accuracy": 1.0 - ratio(summary["sum"], summary["n"])}
