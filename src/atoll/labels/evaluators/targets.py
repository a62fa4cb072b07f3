"""Scores on a target's rows: accuracy, and F1 of classes that count equally."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.learn.metrics import Accuracy, Confusion

__all__ = ["accuracy", "macro_f1"]


def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of rows whose highest score is that of their class; NaN without rows."""
    metric = Accuracy()
    return metric.result(metric.of(scores, labels))["accuracy"]


def macro_f1(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean over classes of ``2 precision recall / (precision + recall)``, over classes that occur as truth or as guess."""
    metric = Confusion(max(np.asarray(scores).reshape(len(np.asarray(labels)), -1).shape[1], 2))
    return metric.result(metric.of(scores, labels))["f1_macro"]
