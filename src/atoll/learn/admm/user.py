"""A user's computation in the matrix factorisation: its copy of the predicted ratings, its profile, its multiplier."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.core.redaction import private
from atoll.core.requests.task import task
from atoll.data.missing import known_rows

__all__ = ["group_lasso_row", "rating_step", "user_step"]

Array = np.ndarray[Any, np.dtype[Any]]


def rating_step(ratings: Array, mask: Array, predicted: Array, dual: Array, rho: float) -> Array:
    """Return ``x = (2 m r + rho u V^T - pi) / (2 m + rho)``, entry by entry: the minimiser over ``x`` of ``||m (x - r)||^2 + <pi, x> + (rho/2) ||x - u V^T||^2``.

    Args:
        ratings: ``r``, ``(items,)``.
        mask: ``m``, 1 for rated items.
        predicted: ``u V^T``.
        dual: ``pi``.
        rho: the penalty.
    """
    return np.asarray((2.0 * mask * ratings + rho * predicted - dual) / (2.0 * mask + rho))


def group_lasso_row(items: Array, target: Array, rho: float, weight: float) -> Array:
    """Return ``argmin_u weight ||u||_2 + (rho/2) ||c - u V^T||^2``, exact.

    ``u = 0`` if ``rho ||c V|| <= weight``. Otherwise with ``rho V^T V = Q diag(w) Q^T`` and ``b = Q^T (rho V^T c)`` the norm ``t = ||u||`` solves
    ``||b / (w t + weight)|| = 1``. Its left side decreases, so bisection finds ``t`` to the last bit. ``u = Q (t b / (w t + weight))``.

    Args:
        items: ``V``, ``(items, rank)``.
        target: ``c``, ``(items,)``.
        rho: the penalty.
        weight: weight of the norm.
    """
    pull = rho * (target @ items)
    if np.linalg.norm(pull) <= weight:
        return np.zeros(items.shape[1])
    values, turn = np.linalg.eigh(rho * items.T @ items)
    values, b = np.maximum(values, 0.0), turn.T @ pull
    if weight == 0:
        keep = values > values.max() * 1e-13
        return np.asarray(turn @ np.where(keep, b / np.where(keep, values, 1.0), 0.0))
    high = _root(values, b, weight)
    return np.asarray(turn @ (high * b / (values * high + weight)))


def _root(values: Array, b: Array, weight: float) -> float:
    """Return the ``t`` of ``group_lasso_row``."""

    def below(t: float) -> bool:
        ratio = b / (values * t + weight)
        return math.sqrt(ratio @ ratio) > 1.0  # a norm, computed sixty times per user: without NumPy's overhead

    low, high = 0.0, 1.0
    while below(high):
        low, high = high, 2.0 * high
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


@task
def user_step(island: Any, message: Tree) -> dict[str, Aggregate]:
    """Update ``x``, ``u`` and ``pi``, in this order, with the item profiles ``V`` of the message.

    In clear form, the reply is ``(rho x + pi, u)``, as in the paper; in aggregate form, the change of ``A_i = u^T u`` and ``B_i = (rho x + pi)^T u``.
    """
    items, rho, weight = message["items"], message["rho"], message["weight"]
    ratings, mask = _rated(island, len(items))
    state = island.state or _fresh(*items.shape)
    x = rating_step(ratings, mask, items @ state["u"], state["dual"], rho)
    u = group_lasso_row(items, x + state["dual"] / rho, rho, weight)
    gap = x - items @ u
    dual = state["dual"] + rho * gap
    sent = rho * x + dual
    square, cross = np.outer(u, u), np.outer(sent, u)
    island.state = {"u": u, "dual": dual, "square": square, "cross": cross}
    values = {
        "fit": (mask * (items @ u - ratings) ** 2).sum(),
        "norm": np.linalg.norm(u),
        "gap": gap @ gap,
        "dual": dual @ dual,
    }
    metrics = {name: Sum(np.float64(value), role="metric") for name, value in values.items()}
    if message["clear"]:
        return {"reply": Parts({"message": sent, "u": u}), **metrics}
    return {"A": Sum(square - state["square"]), "B": Sum(cross - state["cross"]), **metrics}


def _fresh(items: int, rank: int) -> dict[str, Array]:
    zeros = np.zeros
    return {"u": zeros(rank), "dual": zeros(items), "square": zeros((rank, rank)), "cross": zeros((items, rank))}


def _rated(island: Any, items: int) -> tuple[Array, Array]:
    """Return the ratings and the mask of a user: rows ``(item, rating)``, or all items in order.

    Raises:
        DataError: an item is unknown, or rated twice.
    """
    data = known_rows(island.data, "MatrixFactorisation")
    x, y = np.asarray(data.x), np.asarray(data.y, np.float64)
    at = np.reshape(x, (len(y), -1))[:, 0].astype(np.int64)
    if len(at) and (at.min() < 0 or at.max() >= items):
        raise DataError(
            f"{island.name} rates item {private(int(at.max() if at.max() >= items else at.min()))} of {items}",
            where="MatrixFactorisation.items",
            remedy=f"number items 0 to {items - 1}, or raise items",
        )
    if len(np.unique(at)) < len(at):
        raise DataError(f"{island.name} rates an item twice", where="ratings", remedy="keep one rating per item")
    ratings, mask = np.zeros(items), np.zeros(items)
    ratings[at], mask[at] = y, 1.0
    return ratings, mask
