"""Losses of boosted trees: gradients, second derivatives, the first guess, and predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import About

__all__ = ["LOGISTIC", "OBJECTIVES", "POISSON", "SOFTMAX", "SQUARED", "TreeLoss", "objective_of"]

_LEAST = 1e-16
_LEAST_SHARE = 1e-6
LOGISTIC, SQUARED, SOFTMAX = "binary:logistic", "reg:squarederror", "multi:softprob"
OBJECTIVES = (LOGISTIC, SQUARED, SOFTMAX)
POISSON = "count:poisson"
"""Of linear models alone: boosted trees have no such objective here."""


@dataclass(frozen=True)
class TreeLoss:
    """A loss in XGBoost's terms.

    With margins ``m`` and predictions ``p``: logistic ``p = 1 / (1 + e^-m)``, ``g = p - y``, ``h = p (1 - p)``; squared error ``g = m - y``,
    ``h = 1``; Poisson ``p = e^m``; softmax ``g_k = p_k - [y = k]``, ``h_k = 2 p_k (1 - p_k)``. Chen, Guestrin 2016, "XGBoost", section 2.2, and its implementation.

    Attributes:
        name: XGBoost's name.
        outputs: trees a round: the number of classes for softmax, else 1.
    """

    name: str
    outputs: int = 1

    def targets(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """The labels as numbers in ``{0, 1}``, or as they are for a regression."""
        found = np.asarray(y, np.float64)
        return np.where(found < 0, 0.0, found) if self.name == LOGISTIC else found

    def label_sums(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """What the first guess is made of, ``(outputs,)``: sums of labels, or rows of each class."""
        found = self.targets(y)
        if self.name == SOFTMAX:
            return np.bincount(found.astype(np.int64), minlength=self.outputs).astype(np.float64)
        return np.array([found.sum()])

    def first_guess(self, sums: NDArray[np.float64], rows: float) -> NDArray[np.float64]:
        """The margins before the first tree, ``(outputs,)``: the mean label, its log-odds, or centred log shares of the classes.

        A class without rows counts with a share of 1e-6, as in XGBoost: a site may lack one of several classes.

        Raises:
            DataError: there are two classes, and one has no rows.
        """
        share = sums / rows
        if self.name == SQUARED:
            return share
        if self.name == POISSON:
            return np.asarray(np.log(np.maximum(share, _LEAST)))
        shares = np.array([1 - share[0], share[0]]) if self.name == LOGISTIC else np.maximum(share, _LEAST_SHARE)
        if not (shares > 0).all():
            raise DataError(
                f"no party has a row of class {int(np.argmin(shares))}",
                where=self.name,
                remedy="leave the class out, or invite parties that have it",
            )
        logs = np.log(shares)
        return np.array([logs[1] - logs[0]]) if self.name == LOGISTIC else logs - logs.mean()

    def gradients(
        self, margin: NDArray[np.float32], targets: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """First and second derivatives by the margins, ``(rows, outputs)`` each."""
        if self.name == SQUARED:
            return (margin - targets[:, None]).astype(np.float32), np.ones_like(margin)
        p = self.predict(margin)
        if self.name == LOGISTIC:
            return (p - targets[:, None]).astype(np.float32), np.maximum(p * (1 - p), np.float32(_LEAST))
        classes = np.zeros_like(p)
        classes[np.arange(len(p)), targets.astype(np.int64)] = 1
        return p - classes, np.maximum(2 * p * (1 - p), np.float32(_LEAST))

    def predict(self, margin: NDArray[Any]) -> NDArray[Any]:
        """Probabilities, or values of a regression, ``(rows, outputs)``, in the precision of the margins."""
        if self.name == SQUARED:
            return margin
        if self.name == POISSON:
            return np.asarray(np.exp(margin))
        if self.name == LOGISTIC:
            with np.errstate(over="ignore"):
                return np.asarray(np.divide(1, 1 + np.exp(-margin), dtype=margin.dtype))
        exp = np.exp(margin - margin.max(axis=1, keepdims=True))
        return np.asarray(np.divide(exp, exp.sum(axis=1, keepdims=True), dtype=margin.dtype))


def objective_of(name: str, about: About) -> TreeLoss:
    """The objective by its name, or by what the labels are (``"auto"``).

    Raises:
        ConfigError: there is no such objective.
        DataError: the labels do not fit it.
    """
    kinds = {"regression": SQUARED, "binary": LOGISTIC, "classification": LOGISTIC if about.classes == 2 else SOFTMAX}
    chosen = kinds.get(about.task) if name == "auto" else name
    if about.task == "unlabelled":
        raise DataError("no row has a label", where="Trees", remedy="name a column that has values")
    if chosen is None:
        raise DataError(
            f"labels of a task {about.task!r}", where="Trees", remedy="give one class or one number a row as label"
        )
    if chosen not in OBJECTIVES:
        raise ConfigError(f"objective={chosen!r}", where="Trees", remedy=f"use auto, {', '.join(OBJECTIVES)}")
    if chosen != SQUARED and about.classes == 1:
        raise DataError(
            "all labels are of one class", where="Trees", remedy="take a label with different values, or more rows"
        )
    if (chosen == SQUARED) != (about.task == "regression") or (chosen == LOGISTIC and about.classes not in (None, 2)):
        raise DataError(
            f"objective={chosen!r}, but the labels are a {about.task} of {about.classes} classes",
            where="Trees",
            remedy="use objective='auto'",
        )
    return TreeLoss(chosen, about.classes or 1 if chosen == SOFTMAX else 1)
