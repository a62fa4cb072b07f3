"""Metrics of classification. A row has one score per class; their softmax gives probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.errors import ConfigError

from .base import ScoreMetric, class_columns, ratio

__all__ = ["Accuracy", "Calibration", "Confusion", "LogLoss", "TopKAccuracy"]


def _log_softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = z - z.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class Accuracy(ScoreMetric):
    """``(1/n) sum_i 1[argmax z_i = y_i]``."""

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "hits": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and of correct ones."""
        z, y = class_columns(scores, targets, "Accuracy")
        return {"n": float(len(y)), "hits": float((z.argmax(axis=1) == y).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the share of correct rows."""
        return {"accuracy": ratio(summary["hits"], summary["n"])}


@dataclass(frozen=True)
class TopKAccuracy(ScoreMetric):
    """The share of rows whose class has one of the ``k`` highest scores; among equal scores the lower class ranks first, as in argmax.

    Attributes:
        k: number of guesses that count.
    """

    k: int = 5

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k={self.k}", where="TopKAccuracy", remedy="use at least 1")

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "hits": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and of those with their class among the first k."""
        z, y = class_columns(scores, targets, "TopKAccuracy")
        own = z[np.arange(len(y)), y][:, None]
        earlier = np.arange(z.shape[1]) < y[:, None]
        rank = (z > own).sum(axis=1) + ((z == own) & earlier).sum(axis=1)
        return {"n": float(len(y)), "hits": float((rank < self.k).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the share of such rows."""
        return {f"top_{self.k}_accuracy": ratio(summary["hits"], summary["n"])}


@dataclass(frozen=True)
class Confusion(ScoreMetric):
    """Counts of (true class, predicted class), and their precision, recall and F1.

    For class c: ``precision = M_cc / sum_i M_ic``, ``recall = M_cc / sum_j M_cj``, ``F1 = 2 M_cc / (sum_i M_ic + sum_j M_cj)``, 0 where
    undefined. ``macro`` is the plain mean over the classes that occur (as truth or as guess), ``weighted`` the mean by true rows.

    Attributes:
        classes: number of classes.
    """

    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ConfigError(f"classes={self.classes}", where="Confusion", remedy="use at least 2")

    def zero(self) -> Summary:
        """Return an empty matrix."""
        return {"matrix": np.zeros((self.classes, self.classes))}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the matrix: rows are true classes, columns are predicted classes."""
        z, y = class_columns(scores, targets, "Confusion")
        guess = z.argmax(axis=1)
        if len(y) and max(int(y.max()), int(guess.max())) >= self.classes:
            raise ConfigError(
                f"classes={self.classes} and the scores have {z.shape[1]}",
                where="Confusion",
                remedy=f"use Confusion({z.shape[1]})",
            )
        flat = np.bincount(y * self.classes + guess, minlength=self.classes**2)
        return {"matrix": flat.reshape(self.classes, self.classes).astype(np.float64)}

    def matrix(self, summary: Summary) -> NDArray[np.int64]:
        """The counts, ``(classes, classes)``: true class by predicted class."""
        return np.asarray(summary["matrix"]).round().astype(np.int64)

    def per_class(self, summary: Summary) -> dict[str, NDArray[np.float64]]:
        """Return precision, recall, F1 and the true rows (``support``) of every class, each ``(classes,)``."""
        counts = np.asarray(summary["matrix"], dtype=np.float64)
        hits, truth, guesses = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
        both = truth + guesses
        return {
            "precision": np.divide(hits, guesses, out=np.zeros_like(hits), where=guesses > 0),
            "recall": np.divide(hits, truth, out=np.zeros_like(hits), where=truth > 0),
            "f1": np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0),
            "support": truth,
        }

    def result(self, summary: Summary) -> dict[str, float]:
        """Return precision, recall and F1, macro and weighted."""
        found = self.per_class(summary)
        counts = np.asarray(summary["matrix"])
        occurs = (counts.sum(axis=0) + counts.sum(axis=1)) > 0
        support = found["support"]
        made: dict[str, float] = {}
        for name in ("precision", "recall", "f1"):
            made[f"{name}_macro"] = ratio(found[name][occurs].sum(), occurs.sum())
            made[f"{name}_weighted"] = ratio((found[name] * support).sum(), support.sum())
        return made


@dataclass(frozen=True)
class LogLoss(ScoreMetric):
    """``-(1/n) sum_i ln softmax(z_i)[y_i]``, in nats."""

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "loss": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and the sum of their losses."""
        z, y = class_columns(scores, targets, "LogLoss")
        if not len(y):
            return self.zero()
        return {"n": float(len(y)), "loss": float(-_log_softmax(z)[np.arange(len(y)), y].sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the mean loss."""
        return {"log_loss": ratio(summary["loss"], summary["n"])}


@dataclass(frozen=True)
class Calibration(ScoreMetric):
    """Expected calibration error ``sum_b (n_b / n) |accuracy_b - confidence_b|`` over equal bins of the highest probability.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", Eq. 3.

    Attributes:
        bins: number of bins of [0, 1].
    """

    bins: int = 15

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ConfigError(f"bins={self.bins}", where="Calibration", remedy="use at least 1")

    def zero(self) -> Summary:
        """Empty bins."""
        return {name: np.zeros(self.bins) for name in ("n", "hits", "confidence")}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return, by bin, the number of rows, of correct rows, and the sum of their confidence."""
        z, y = class_columns(scores, targets, "Calibration")
        if not len(y):
            return self.zero()
        confidence = np.exp(_log_softmax(z).max(axis=1))
        # Bins are open on the left, as in the source: (0, 1/M], (1/M, 2/M], ...
        place = (np.ceil(confidence * self.bins).astype(np.int64) - 1).clip(0, self.bins - 1)
        hits = (z.argmax(axis=1) == y).astype(np.float64)
        columns = {"n": np.ones(len(y)), "hits": hits, "confidence": confidence}
        return {name: np.bincount(place, weights=w, minlength=self.bins) for name, w in columns.items()}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the error."""
        gap = np.abs(np.asarray(summary["hits"]) - np.asarray(summary["confidence"])).sum()
        return {"calibration_error": ratio(gap, np.sum(summary["n"]))}
