"""Pseudo-labels: how many there are, and how many are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.learn.metrics.base import ScoreMetric, class_columns, ratio

__all__ = ["PseudoLabels", "coverage", "purity", "sure"]

Floats = NDArray[np.float64]


@checked_call
def sure(scores: ArrayLike, tau: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which rows get a pseudo-label, and which: ``max_c softmax(z)_c >= tau``, and the class that has the maximum.

    Args:
        scores: logits, ``(n, classes)``; one column means the two classes ``[0, z]``.
        tau: the threshold, in (1/classes, 1].

    Raises:
        ConfigError: every row would pass, or none.
    """
    z = np.asarray(scores, np.float64)
    z = z.reshape(len(z), -1)
    if z.shape[1] == 1:
        z = np.hstack([np.zeros_like(z), z])
    if not 1.0 / z.shape[1] < tau <= 1.0:
        raise ConfigError(
            f"tau={tau} for {z.shape[1]} classes: every row is as sure as 1/{z.shape[1]}",
            where="pseudo-labels",
            remedy="use a threshold above 1 / classes and up to 1, such as 0.95",
        )
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p.max(axis=1) >= tau, np.asarray(p.argmax(axis=1), np.int64)


@checked_call
def coverage(scores: ArrayLike, tau: float) -> float:
    """Return the share of rows with a pseudo-label; NaN without rows. No label is needed."""
    kept, _ = sure(scores, tau)
    return ratio(kept.sum(), len(kept))


@checked_call
def purity(scores: ArrayLike, truth: ArrayLike, tau: float) -> float:
    """Return the share of pseudo-labels that are right; NaN if there are none."""
    kept, guess = sure(scores, tau)
    return ratio((guess == np.asarray(truth).reshape(-1))[kept].sum(), kept.sum())


@dataclass(frozen=True)
class PseudoLabels(ScoreMetric):
    """Coverage and purity of the model's pseudo-labels, round by round, on rows whose labels are known.

    Attributes:
        tau: the threshold, in (1/classes, 1].
    """

    tau: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise ConfigError(
                f"tau={self.tau}", where="PseudoLabels", remedy="use a threshold above 1 / classes and up to 1"
            )

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "kept": 0.0, "right": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the numbers of rows, of pseudo-labels, and of right ones."""
        z, y = class_columns(scores, targets, "PseudoLabels")
        kept, guess = sure(z, self.tau)
        return {"n": float(len(y)), "kept": float(kept.sum()), "right": float((guess == y)[kept].sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return both shares."""
        return {
            "coverage": ratio(summary["kept"], summary["n"]),
            "purity": ratio(summary["right"], summary["kept"]),
        }
