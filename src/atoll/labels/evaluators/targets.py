"""Scores on a target's rows: accuracy, and F1 of classes that count equally."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.calls import checked_call
from atoll.learn.metrics import Accuracy, Confusion

__all__ = ["accuracy", "balanced", "macro_f1"]


@checked_call
def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of rows whose highest score is that of their class; NaN without rows."""
    metric = Accuracy()
    return metric.result(metric.of(scores, labels))["accuracy"]


@checked_call
def balanced(scores: ArrayLike, shares: ArrayLike) -> NDArray[np.float64]:
    """Return logits less the log of the classes' shares among the training labels, so that rare classes count as much as common ones.

    The class with the largest has the least error averaged over classes (Menon et al. 2021, "Long-tail learning via logit adjustment", eq. 9).

    Args:
        scores: logits, ``(rows, C)``.
        shares: of the classes among the labels that were trained on, ``(C,)``, or their counts. A class without a label is never answered.
    """
    counts = np.asarray(shares, np.float64)
    with np.errstate(divide="ignore"):
        cost = np.log(counts / counts.sum())
    return np.where(counts > 0, np.asarray(scores, np.float64) - np.where(counts > 0, cost, 0.0), -np.inf)


@checked_call
def macro_f1(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean over classes of ``2 precision recall / (precision + recall)``, over classes that occur as truth or as guess."""
    metric = Confusion(max(np.asarray(scores).reshape(len(np.asarray(labels)), -1).shape[1], 2))
    return metric.result(metric.of(scores, labels))["f1_macro"]
