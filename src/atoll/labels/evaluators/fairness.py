"""Differences between groups of people."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError

__all__ = ["fairness_gap", "group_measures"]

Measure = Literal["rate", "accuracy", "recall"]


@checked_call
def group_measures(
    scores: ArrayLike, groups: ArrayLike, *, measure: Measure = "rate", labels: ArrayLike | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return ``m(g | s)`` of each group ``s``: a vector with one entry a class.

    Args:
        scores: logits ``(n, classes)``.
        groups: the group of each row, ``(n,)``.
        measure: ``"rate"``: how often each class is predicted, which needs no labels (demographic parity); ``"accuracy"``: how often the prediction is right, one entry;
            ``"recall"``: how often each class is found (equal opportunity), NaN where a group lacks a class.
        labels: ``(n,)``, for all but ``"rate"``.

    Raises:
        ConfigError: an unknown measure, or one that needs labels without any.
        DataError: shapes disagree, or there are fewer than two groups.
    """
    z, s = np.asarray(scores, np.float64), np.asarray(groups).reshape(-1)
    if measure not in ("rate", "accuracy", "recall") or (measure != "rate" and labels is None):
        raise ConfigError(
            f"measure={measure!r} without labels" if labels is None else f"measure={measure!r}",
            where="fairness gap",
            remedy="use 'rate', which needs none, or give labels= for 'accuracy' and 'recall'",
        )
    y = None if labels is None else np.asarray(labels).reshape(-1)
    names = np.unique(s)
    if z.ndim != 2 or len(s) != len(z) or (y is not None and len(y) != len(z)) or len(names) < 2:
        raise DataError(
            f"scores of shape {z.shape}, {len(s)} groups of which {len(names)} differ",
            where="fairness gap",
            remedy="give (n, classes) scores and the group of each row, from at least two groups",
        )
    guess, classes = z.argmax(axis=1), z.shape[1]
    found = {}
    for name in names:
        own = s == name
        if measure == "rate":
            found[str(name)] = np.bincount(guess[own], minlength=classes) / own.sum()
            continue
        right = guess[own] == y[own]  # type: ignore[index]
        if measure == "accuracy":
            found[str(name)] = np.array([right.mean()])
        else:
            there = np.bincount(y[own], minlength=classes)  # type: ignore[index]
            hits = np.bincount(y[own][right], minlength=classes)  # type: ignore[index]
            found[str(name)] = np.where(there > 0, hits / np.maximum(there, 1), np.nan)
    return found


@checked_call
def fairness_gap(
    scores: ArrayLike, groups: ArrayLike, *, measure: Measure = "rate", labels: ArrayLike | None = None
) -> float:
    """Return ``||m(g | s=1) - m(g | s=0)||``, the Euclidean length of the difference between two groups; of several groups, the largest of any two.

    Source: Jin, Liu, Chen, Yang: Federated learning without full labels: a survey, 2023, equation 104. Classes that a group lacks do not count.

    The arguments are those of `group_measures`.
    """
    rows = list(group_measures(scores, groups, measure=measure, labels=labels).values())
    return max(float(np.sqrt(np.nansum((a - b) ** 2))) for k, a in enumerate(rows) for b in rows[k + 1 :])
