"""What a method is worth: scores, paired gains, fairness between groups, and accuracy under attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics import Accuracy, Confusion

from ..losses import cross_entropy_of_rows

__all__ = [
    "PairedGain",
    "accuracy",
    "accuracy_under_attack",
    "balanced",
    "fairness_gap",
    "group_measures",
    "macro_f1",
    "paired_gain",
    "t_quantile",
]

# Scores on a target's rows: accuracy, and F1 of classes that count equally.


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


# Whether a method beats a baseline, over seeds that both ran.


_ROUNDING = 1e-12
"""Deviation of differences, relative to the scores, below which they are equal."""


@dataclass(frozen=True)
class PairedGain:
    """A method against a baseline, seed by seed.

    Attributes:
        gain: median of the differences, method minus baseline.
        mean: mean of the differences.
        interval: of the mean, at ``level``; ``None`` with one seed, and where all differences are equal: they show no spread.
        level: such as 0.95.
        differences: one a seed.
    """

    gain: float
    mean: float
    interval: tuple[float, float] | None
    level: float
    differences: tuple[float, ...]

    @property
    def helped(self) -> bool:
        """Whether the whole interval is above 0; ``False`` without an interval, since nothing shows how far another seed would be."""
        return self.interval is not None and self.interval[0] > 0


@checked_call
def paired_gain(scores: Sequence[float], baseline: Sequence[float], *, level: float = 0.95) -> PairedGain:
    """Compare scores of the same seeds: Student's interval of the mean difference, ``d +- t_{n-1} s / sqrt(n)``.

    Differences of one seed share the labelled rows, the parties and the test rows, so that what they have in common cancels. The interval assumes that differences
    are about normal; with three seeds ``t`` is 4.30.

    Args:
        scores: the method's, one a seed.
        baseline: the baseline's, of the same seeds in the same order.
        level: of the interval.

    Raises:
        DataError: no seeds, or other numbers of them, or a score that is not finite.
    """
    a, b = np.asarray(scores, np.float64), np.asarray(baseline, np.float64)
    if a.shape != b.shape or a.ndim != 1 or not len(a) or not np.isfinite(a - b).all() or not 0 < level < 1:
        raise DataError(
            f"scores of {a.shape} and {b.shape} seeds at level {level}",
            where="paired gain",
            remedy="give one finite score a seed for both, and a level between 0 and 1",
        )
    d = a - b
    interval = None
    if len(d) > 1 and d.std(ddof=1) > _ROUNDING * max(np.abs(a).max(), np.abs(b).max()):
        half = t_quantile((1 + level) / 2, len(d) - 1) * float(d.std(ddof=1)) / math.sqrt(len(d))
        interval = (float(d.mean()) - half, float(d.mean()) + half)
    return PairedGain(float(np.median(d)), float(d.mean()), interval, level, tuple(d.tolist()))


@checked_call
def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution with a whole number of degrees of freedom, by bisection.

    The distribution function is the finite sum of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < 2 * share - 1 and high < 1e12:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * share - 1 else (low, middle)
    return (low + high) / 2


def _t_within(t: float, freedom: int) -> float:
    """The probability of a value between ``-t`` and ``t``."""
    angle = math.atan(t / math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cos if odd else 1.0), 0.0
    for k in range((freedom - 1) // 2 if odd else freedom // 2):
        total += term
        upper = 2 * k + (2 if odd else 1)
        term *= cos * cos * upper / (upper + 1)
    return 2 / math.pi * (angle + sin * total) if odd else sin * total


# Differences between groups of people.


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


# Accuracy where every row is changed against the model.


@checked_call
def accuracy_under_attack(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, radius: float, steps: int = 10
) -> tuple[float, float]:
    """Return the accuracy on rows as they are, and after ``steps`` steps of projected gradient ascent within ``radius`` of each number.

    Source: Madry, Makelov, Schmidt, Tsipras, Vladu 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks". The start is random, with a fixed
    seed; a step is a quarter of the radius.

    Args:
        model: rows -> logits.
        x: rows with numbers in [0, 1], ``(n, ...)``.
        y: classes, ``(n,)``.
        radius: largest change of a number.
        steps: of the ascent.
    """
    model.eval()
    gen = torch.Generator().manual_seed(0)
    change = (2.0 * torch.rand(x.shape, generator=gen) - 1.0) * radius
    for _ in range(steps):
        change.requires_grad_(True)
        loss = cross_entropy_of_rows(model((x + change).clamp(0.0, 1.0)), y).sum()
        (slope,) = torch.autograd.grad(loss, change)
        change = (change.detach() + radius / 4.0 * slope.sign()).clamp(-radius, radius)
    with torch.no_grad():
        plain, under = (model(rows).argmax(1) == y for rows in (x, (x + change).clamp(0.0, 1.0)))
    return float(plain.float().mean()), float(under.float().mean())
