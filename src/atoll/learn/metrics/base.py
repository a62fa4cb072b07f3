"""The contract of a metric of scores, and the plain form in which it is sent to a client."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.addresses import declared_name
from atoll.core.algebra.metric import Metric, Summary
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SINGLE_REPLIES, Capability, Need
from atoll.core.errors import DataError
from atoll.core.redaction import private
from atoll.core.requests.task import resolve

__all__ = ["ScoreMetric", "class_columns", "pack_metric", "ratio", "rows_of", "unpack_metric"]


@dataclass(frozen=True)
class ScoreMetric(Metric):
    """A metric of a model's outputs on labelled rows. ``result`` returns name -> value."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer if clients measure the metric."""
        alone = Need(SINGLE_REPLIES, "is not additive", "metrics of the server's test set, with clients=0")
        return () if self.additive else (alone,)

    @property
    def offers(self) -> frozenset[Capability]:
        """Nothing: no other part needs a metric."""
        return frozenset()

    @abstractmethod
    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Summarise some rows.

        Args:
            scores: the model's outputs, ``(n,)`` or ``(n, outputs)``.
            targets: labels or target values, ``(n,)`` or ``(n, outputs)``.
        """

    @abstractmethod
    def result(self, summary: Summary) -> dict[str, float]:
        """Return name -> value; NaN if there are no rows to define it."""


def ratio(part: Any, whole: Any) -> float:
    """Return ``part / whole``, or NaN if ``whole`` is 0."""
    return float(part / whole) if whole else math.nan


def rows_of(scores: ArrayLike, targets: ArrayLike, where: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scores and targets as two ``(n, outputs)`` arrays of numbers.

    Raises:
        DataError: their shapes differ.
    """
    z, y = np.asarray(scores, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    z, y = (a.reshape(len(a), math.prod(a.shape[1:])) for a in (z, y))
    if z.shape != y.shape:
        raise DataError(
            f"scores of shape {np.shape(scores)} for targets of shape {np.shape(targets)}",
            where=where,
            remedy="use a model with as many outputs as targets",
        )
    return z, y


def class_columns(scores: ArrayLike, targets: ArrayLike, where: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return scores as ``(n, classes)`` and class numbers ``(n,)``.

    A single score z per row means the two classes ``[0, z]`` of a logistic model; its targets can be 0/1 or -1/+1.

    Raises:
        DataError: the rows do not match, or a label is outside the classes.
    """
    z, y = np.asarray(scores, dtype=np.float64), np.asarray(targets)
    z, y = z.reshape(len(z), math.prod(z.shape[1:])), y.reshape(-1)
    if z.shape[1] == 1:
        z, y = np.hstack([np.zeros_like(z), z]), np.where(y > 0, 1, 0)
    labels = y.astype(np.int64)
    if len(labels) != len(z) or (len(labels) and not 0 <= labels.min() <= labels.max() < z.shape[1]):
        span = f", labels {private(labels.min())} to {private(labels.max())}" if len(labels) else ""
        raise DataError(
            f"scores of shape {np.shape(scores)} for targets of shape {np.shape(targets)}{span}",
            where=where,
            remedy="use a model with one output per class, and labels from 0",
        )
    return z, labels


def pack_metric(metric: Metric) -> Tree:
    """Return a metric as its name and plain settings."""
    kind = type(metric)
    settings = {f.name: getattr(metric, f.name) for f in fields(metric)}
    if callable(settings.get("function")):  # a message has no functions
        settings["function"] = getattr(metric, "key", "")
    return {"metric": declared_name(kind), "settings": settings}


def unpack_metric(packed: Any) -> Any:
    """Return the inverse of ``pack_metric``.

    Raises:
        ConfigError: no metric of this name can be imported here.
    """
    return resolve(packed["metric"], {}, ScoreMetric)(**packed["settings"])
