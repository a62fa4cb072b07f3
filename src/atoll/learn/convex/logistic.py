"""Logistic regression on rows of norm 1 at most: its losses are 1-Lipschitz."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.data.missing import known_rows

__all__ = ["gradient", "minimiser", "rows_of"]

Array = NDArray[np.float64]


def rows_of(data: Any, least: int, name: str) -> Array:
    """A party's rows times their labels of +1 and -1, scaled down to norm 1, ``(rows, features)``.

    Raises:
        DataError: there are fewer rows than the noise was made for, or the labels are not two.
    """
    data = known_rows(data, "a private regression")
    x, y = np.asarray(data["x"], np.float64).reshape(len(data["y"]), -1), np.asarray(data["y"])
    if len(y) < least:
        raise DataError(
            f"{name} has {len(y)} examples, and the noise is for at least {least}", where="smallest", remedy="lower it"
        )
    if not set(np.unique(y).tolist()) <= {-1, 0, 1}:
        raise DataError(
            f"{name} has labels {np.unique(y)[:5]}", where="y", remedy="use two labels: 0 and 1, or -1 and 1"
        )
    signs = np.where(y > 0, 1.0, -1.0)
    found: Array = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)) * signs[:, None]
    return found


def gradient(w: Array, rows: Array, ridge: float) -> Array:
    """Of ``mean ln(1 + exp(-z^T w)) + ridge / 2 ||w||^2`` over rows ``z = y x``."""
    found: Array = -rows.T @ (1 / (1 + np.exp(np.clip(rows @ w, -700, 700)))) / len(rows) + ridge * w
    return found


def minimiser(rows: Array, ridge: float, tolerance: float = 1e-12) -> Array:
    """By Newton's method with halved steps. A gradient of norm ``tolerance`` leaves an error of ``tolerance / ridge`` at most."""
    w = np.zeros(rows.shape[1])

    def value(at: Array) -> float:
        return float(np.logaddexp(0.0, -rows @ at).mean() + ridge / 2 * at @ at)

    for _ in range(200):
        slope = gradient(w, rows, ridge)
        if np.linalg.norm(slope) <= tolerance:
            break
        p = 1 / (1 + np.exp(np.clip(rows @ w, -700, 700)))
        step = np.linalg.solve((rows.T * (p * (1 - p))) @ rows / len(rows) + ridge * np.eye(len(w)), slope)
        size = 1.0
        while value(w - size * step) > value(w) - 0.25 * size * slope @ step and size > 1e-6:
            size /= 2
        w = w - size * step
    return w
