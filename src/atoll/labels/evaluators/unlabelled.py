"""What guesses are worth, with and without labels to compare them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics.base import ScoreMetric, class_columns, ratio

__all__ = [
    "Confidence",
    "PseudoLabels",
    "agreement",
    "coverage",
    "information",
    "mean_entropy",
    "purity",
    "rank_correlation",
    "rank_without_labels",
    "sure",
]

# What can be measured without a label: how sure a model is, of how many classes, and whether it says the same twice.


Floats = NDArray[np.float64]
_RULES = ("entropy", "information", "agreement")


def _probabilities(scores: ArrayLike) -> Floats:
    """Softmax of logits ``(n, classes)``; one column means the two classes ``[0, z]``."""
    z = np.asarray(scores, np.float64)
    z = z.reshape(len(z), -1)
    if z.shape[1] == 1:
        z = np.hstack([np.zeros_like(z), z])
    p = np.exp(z - z.max(axis=1, keepdims=True)) if len(z) else z
    return np.asarray(p / p.sum(axis=1, keepdims=True), np.float64)


def _entropy(p: Floats) -> Floats:
    """``-sum_c p_c ln p_c`` of each row, in nats."""
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1), np.float64)


@checked_call
def mean_entropy(scores: ArrayLike) -> float:
    """Return the mean entropy of a model's class probabilities, in nats: 0 for a model that is sure of every row, ``ln C`` for one that knows nothing.

    A model that has collapsed to one class has entropy 0 as well; `information` tells them apart.

    Args:
        scores: logits, ``(n, classes)``; one column means the two classes ``[0, z]``.
    """
    return ratio(_entropy(_probabilities(scores)).sum(), len(np.asarray(scores)))


@checked_call
def information(scores: ArrayLike) -> float:
    """Return ``H(mean_i p_i) - mean_i H(p_i)``, in nats: sure of each row, and of different classes (Bridle, Heading, MacKay 1991).

    It is 0 for a model that says the same of all rows, and at most ``ln C``. It favours balanced classes.

    Args:
        scores: logits, ``(n, classes)``.
    """
    p = _probabilities(scores)
    return float(_entropy(p.mean(axis=0)) - _entropy(p).mean()) if len(p) else float("nan")


@checked_call
def agreement(scores: ArrayLike, other: ArrayLike) -> float:
    """Return the share of rows of which two sets of scores say the same class: of two views of the rows, or of two models trained apart.

    If two models err independently of each other, their disagreement is at least the difference of their errors and at most the sum (Jiang et al. 2022).

    Args:
        scores: logits, ``(n, classes)``.
        other: logits of the same rows.

    Raises:
        DataError: the shapes differ.
    """
    one, two = (_probabilities(s) for s in (scores, other))
    if one.shape != two.shape:
        raise DataError(
            f"scores of shape {np.shape(scores)} beside {np.shape(other)}",
            where="agreement",
            remedy="give scores of the same rows and classes",
        )
    return ratio((one.argmax(axis=1) == two.argmax(axis=1)).sum(), len(one))


@checked_call
def rank_without_labels(
    candidates: Mapping[str, ArrayLike], *, by: str = "information", others: Mapping[str, ArrayLike] | None = None
) -> list[tuple[str, float]]:
    """Rank models, thresholds, methods or sources by what they say of rows without labels: the best first, with its value.

    Args:
        candidates: name -> logits of the same rows.
        by: ``"information"`` (most), ``"entropy"`` (least), or ``"agreement"`` with ``others`` (most).
        others: name -> logits of other views of the rows, or of a second training.

    Raises:
        ConfigError: another rule, no candidate, or ``"agreement"`` without others.

    Example:
        >>> import numpy as np
        >>> sure, torn, collapsed = np.eye(3) * 9, np.eye(3), np.eye(3) * 0 + [9, 0, 0]
        >>> [name for name, _ in rank_without_labels({"torn": torn, "sure": sure, "collapsed": collapsed})]
        ['sure', 'torn', 'collapsed']
    """
    if by not in _RULES:
        raise ConfigError(f"by={by!r}", where="rank_without_labels", remedy=f"use one of {', '.join(_RULES)}")
    if not candidates:
        raise ConfigError("there is no candidate", where="rank_without_labels", remedy="give one or more")
    if by == "agreement":
        missing = [name for name in candidates if name not in (others or {})]
        if others is None or missing:
            raise ConfigError(
                f"no other scores of {', '.join(missing)}",
                where="rank_without_labels",
                remedy="give others=: scores of a second view of the rows, or of a second training",
            )
        found = {name: agreement(scores, others[name]) for name, scores in candidates.items()}
    else:
        rule = information if by == "information" else mean_entropy
        found = {name: rule(scores) for name, scores in candidates.items()}
    return sorted(found.items(), key=lambda item: item[1] if by == "entropy" else -item[1])


@checked_call
def rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Return Spearman's rank correlation: how well one ranking tells the other, in [-1, 1]; NaN if all values of one are equal.

    Args:
        one: numbers, ``(n,)``.
        other: numbers in the same order.
    """
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (one, other)]
    a, b = (r - r.mean() for r in ranks)
    return ratio(float(a @ b), float(np.sqrt((a @ a) * (b @ b))))


def _ranks(values: Floats) -> Floats:
    """Return ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts + 1) / 2)[inverse], np.float64)


@dataclass(frozen=True)
class Confidence(ScoreMetric):
    """``entropy`` and ``information`` of the model's class probabilities, round by round. No label is read.

    So a stop rule such as ``Patience("test/information", 5)`` ends a training without labels, and runs can be ranked by their histories.
    """

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "entropy": 0.0, "classes": np.zeros(0)}

    def merge(self, one: Summary, other: Summary) -> Summary:
        """Add two summaries; one of no rows knows no classes yet."""
        pair = [s["classes"] for s in (one, other) if np.size(s["classes"])]
        classes = sum(pair[1:], pair[0]) if pair else np.zeros(0)
        return {"n": one["n"] + other["n"], "entropy": one["entropy"] + other["entropy"], "classes": classes}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and sums of their entropies and probabilities."""
        del targets
        p = _probabilities(scores)
        return {"n": float(len(p)), "entropy": float(_entropy(p).sum()), "classes": p.sum(axis=0)}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the mean entropy and the information, in nats."""
        entropy = ratio(summary["entropy"], summary["n"])
        whole = float(_entropy(summary["classes"] / summary["n"])) if summary["n"] else float("nan")
        return {"entropy": entropy, "information": whole - entropy}


# Pseudo-labels: how many there are, and how many are right.


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
