"""What can be measured without a label: how sure a model is, of how many classes, and whether it says the same twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics.base import ScoreMetric, ratio

__all__ = ["Confidence", "agreement", "information", "mean_entropy", "rank_correlation", "rank_without_labels"]

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
