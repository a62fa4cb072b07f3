"""Local losses with an exact solution of the ADMM subproblem, by name: a task sends names, never code."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.data.missing import known_rows

from ..checks import require_choice

__all__ = ["LOSSES", "check_loss", "gradient", "solve", "value"]

Array = np.ndarray[Any, np.dtype[Any]]

LOSSES = ("least_squares", "quadratic", "logistic")
"""``1/2 ||A w - y||^2`` with rows ``A = x``; ``1/2 w^T H w - b^T w`` with ``H = x``, ``b = y``; ``sum log(1 + exp(-y x^T w))``, ``y`` -1 or 1."""


def check_loss(name: str, where: str) -> None:
    """Refuse an unknown loss.

    Raises:
        ConfigError: names the nearest known loss.
    """
    require_choice(where, "loss", name, LOSSES)


def local_data(island: Any, dim: int, loss: str) -> tuple[Array, Array]:
    """Return a party's ``x`` and ``y``.

    Raises:
        DataError: ``x`` has another number of columns, a quadratic is not a square matrix, or labels of a logistic loss are not -1 and 1.
    """
    data = known_rows(island.data, f"the loss {loss!r}")
    x, y = np.asarray(data.x, np.float64), np.asarray(data.y, np.float64)
    wanted = (dim, dim) if loss == "quadratic" else (len(y), dim)
    if x.shape != wanted:
        raise DataError(f"{island.name} has x of shape {x.shape}", where=loss, remedy=f"give it {wanted}")
    if loss == "logistic" and not np.isin(y, (-1.0, 1.0)).all():
        raise DataError(
            f"{island.name} has labels that are not -1 or 1", where=loss, remedy="map the classes to -1 and 1"
        )
    return x, y


def value(loss: str, x: Array, y: Array, w: Array) -> float:
    """Return the loss."""
    if loss == "least_squares":
        return 0.5 * float(((x @ w - y) ** 2).sum())
    if loss == "quadratic":
        return float(w @ (0.5 * x @ w - y))
    return float(np.logaddexp(0.0, -y * (x @ w)).sum())


def gradient(loss: str, x: Array, y: Array, w: Array) -> Array:
    """Return its gradient, ``(dim,)``."""
    if loss == "least_squares":
        return np.asarray(x.T @ (x @ w - y))
    if loss == "quadratic":
        return np.asarray(x @ w - y)
    return np.asarray(-x.T @ (y / (1.0 + np.exp(np.clip(y * (x @ w), -500.0, 500.0)))))


def solve(loss: str, x: Array, y: Array, linear: Array, rho: float, center: Array) -> Array:
    """Return ``argmin_w f(w) + <linear, w> + (rho/2) ||w - center||^2``, exactly: by a linear system, or Newton's method with halved steps until it converges.

    Args:
        loss: one of ``LOSSES``.
        x: rows, or the matrix.
        y: targets.
        linear: ``(dim,)``.
        rho: weight of the proximal term, positive.
        center: ``(dim,)``.
    """
    eye = np.eye(len(center))
    if loss == "least_squares":
        return np.linalg.solve(x.T @ x + rho * eye, x.T @ y - linear + rho * center)
    if loss == "quadratic":
        return np.linalg.solve(x + rho * eye, y - linear + rho * center)
    w = center

    def total(at: Array) -> float:
        return value(loss, x, y, at) + float(linear @ at) + 0.5 * rho * float((at - center) @ (at - center))

    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(np.clip(-(x @ w), -500.0, 500.0)))
        slope = gradient(loss, x, y, w) + linear + rho * (w - center)
        step = np.linalg.solve((x.T * (p * (1.0 - p))) @ x + rho * eye, slope)
        size = 1.0
        while size > 1e-4 and total(w - size * step) > total(w) - 1e-4 * size * float(slope @ step):
            size *= 0.5
        w = w - size * step
        if float(np.linalg.norm(step)) <= 1e-13 * (1.0 + float(np.linalg.norm(w))):
            break
    return w
