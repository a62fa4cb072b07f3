"""Metrics of a linear two-class machine: one score per row, targets -1/+1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.errors import DataError
from atoll.core.redaction import private

from .base import ScoreMetric, ratio, rows_of

__all__ = ["HingeLoss", "SignAccuracy"]


def _check_signs(scores: ArrayLike, targets: ArrayLike, where: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    z, y = rows_of(scores, targets, where)
    if not np.isin(y, (-1.0, 1.0)).all():
        wrong = y[~np.isin(y, (-1.0, 1.0))][0]
        raise DataError(f"a target of {private(f'{wrong:g}')}", where=where, remedy="use targets -1 and +1")
    return z, y


@dataclass(frozen=True)
class HingeLoss(ScoreMetric):
    """``(1/n) sum_i max(0, 1 - y_i z_i)``."""

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "loss": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and the sum of their losses."""
        z, y = _check_signs(scores, targets, "HingeLoss")
        return {"n": float(z.size), "loss": float(np.maximum(0.0, 1.0 - y * z).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the mean loss."""
        return {"hinge_loss": ratio(summary["loss"], summary["n"])}


@dataclass(frozen=True)
class SignAccuracy(ScoreMetric):
    """``(1/n) sum_i max(0, sign(y_i z_i))``: a score of exactly 0 is wrong (W. Wu 2021, Table 3.3)."""

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "hits": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and of those on the correct side."""
        z, y = _check_signs(scores, targets, "SignAccuracy")
        return {"n": float(z.size), "hits": float(np.maximum(0.0, np.sign(y * z)).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the share of rows on the correct side."""
        return {"sign_accuracy": ratio(summary["hits"], summary["n"])}
