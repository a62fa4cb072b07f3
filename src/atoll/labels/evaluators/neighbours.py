"""Nearest neighbours: how well classes lie together in a representation, without training anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics.base import ScoreMetric, ratio

__all__ = ["NeighbourAccuracy", "nearest_classes", "neighbour_accuracy", "unit"]

Floats = NDArray[np.float64]
_BLOCK = 1024


@checked_call
def unit(features: ArrayLike) -> Floats:
    """Return rows of length 1, ``(n, d)``; rows of zeros stay zero."""
    rows = np.asarray(features, np.float64)
    rows = rows.reshape(len(rows), -1)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


@checked_call
def nearest_classes(
    features: ArrayLike,
    labels: ArrayLike,
    queries: ArrayLike,
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.1,
    alone: bool = False,
) -> Floats:
    """Return votes ``(queries, classes)`` of the ``k`` most similar rows, each ``exp(cos / T)``, divided by their sum.

    Source: Wu, Xiong, Yu, Lin: Unsupervised feature learning via non-parametric instance discrimination, CVPR 2018, section 3.4. Among equally similar rows,
    those with the lower row number vote.

    Args:
        features: rows with known classes, ``(n, d)``.
        labels: their classes, ``(n,)``.
        queries: rows to classify, ``(m, d)``.
        classes: number of classes.
        k: number of neighbours; all rows if there are fewer.
        temperature: ``T``; large values count votes.
        alone: whether query ``i`` is row ``i`` and has no vote on itself.

    Raises:
        DataError: there is no row, or shapes disagree.
    """
    known, asked, y = unit(features), unit(queries), np.asarray(labels, np.int64)
    if k < 1 or temperature <= 0:
        raise ConfigError(
            f"k={k}, temperature={temperature}", where="nearest neighbours", remedy="use positive numbers"
        )
    if len(known) != len(y) or len(known) <= alone or known.shape[1] != asked.shape[1]:
        raise DataError(
            f"{len(known)} rows with {len(y)} labels, of {known.shape[1]} features, and queries of {asked.shape[1]}",
            where="nearest neighbours",
            remedy="give each known row one label, and queries with the same features",
        )
    count = min(k, len(known) - alone)
    votes = np.zeros((len(asked), classes))
    for begin in range(0, len(asked), _BLOCK):
        alike = asked[begin : begin + _BLOCK] @ known.T
        rows = np.arange(len(alike))
        if alone:
            alike[rows, begin + rows] = -np.inf
        best = np.argsort(-alike, axis=1, kind="stable")[:, :count]
        cos = np.take_along_axis(alike, best, axis=1)
        weights = np.exp((cos - cos[:, :1]) / temperature)
        np.add.at(votes, (begin + np.repeat(rows, count), y[best].ravel()), weights.ravel())
    return np.asarray(votes / votes.sum(axis=1, keepdims=True))


@checked_call
def neighbour_accuracy(
    features: ArrayLike,
    labels: ArrayLike,
    queries: ArrayLike,
    truth: ArrayLike,
    *,
    k: int = 20,
    temperature: float = 0.1,
) -> float:
    """Return the share of queries whose nearest rows vote for their class; see `nearest_classes`."""
    y, t = np.asarray(labels, np.int64), np.asarray(truth, np.int64)
    classes = int(max(y.max(initial=0), t.max(initial=0))) + 1
    votes = nearest_classes(features, y, queries, classes=classes, k=k, temperature=temperature)
    return float((votes.argmax(axis=1) == t).mean())


@dataclass(frozen=True)
class NeighbourAccuracy(ScoreMetric):
    """How many rows have the class that their nearest neighbours among the other rows vote for: a monitor of self-supervised training, round by round.

    ``Evaluation(metrics=[NeighbourAccuracy()])`` measures the model's outputs on the server's test rows, each against all others. With ``clients=``, each client
    compares its own rows with each other.

    Attributes:
        k: number of neighbours.
        temperature: see `nearest_classes`.
    """

    k: int = 20
    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.k < 1 or self.temperature <= 0:
            raise ConfigError(
                f"k={self.k}, temperature={self.temperature}", where="NeighbourAccuracy", remedy="use positive numbers"
            )

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "hits": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of rows, and of those whose neighbours agree."""
        y = np.asarray(targets).reshape(-1).astype(np.int64)
        if len(y) < 2:
            return self.zero()
        codes = np.unique(y, return_inverse=True)[1]
        votes = nearest_classes(
            scores, codes, scores, classes=int(codes.max()) + 1, k=self.k, temperature=self.temperature, alone=True
        )
        return {"n": float(len(y)), "hits": float((votes.argmax(axis=1) == codes).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the share of such rows."""
        return {"knn_accuracy": ratio(summary["hits"], summary["n"])}
