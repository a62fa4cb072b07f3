"""The local update, one client at a time: the readable reference for every faster path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core.aggregate import Aggregate
from atoll.core.rng import shuffles
from atoll.core.tree import Tree

from .algorithm import Algorithm, LocalWork

__all__ = ["batch_rows", "count_steps", "local_update"]

LossGradient = Callable[[Tree, Any, Any], tuple[float, Tree]]
"""``(params, x, y) -> (mean loss, its gradient)``."""


def count_steps(algorithm: Algorithm, n: int) -> int:
    """Mini-batch steps of a client with ``n`` examples."""
    if n == 0:
        return 0
    if algorithm.steps is not None:
        return algorithm.steps
    size = n if algorithm.batch_size is None else min(algorithm.batch_size, n)
    return algorithm.epochs * -(-n // size)


def batch_rows(algorithm: Algorithm, n: int, key: int) -> list[np.ndarray]:
    """The rows of every mini-batch in order; a full-batch algorithm takes the rows as they lie."""
    if n == 0:
        return []
    size = n if algorithm.batch_size is None else min(algorithm.batch_size, n)
    per_epoch = -(-n // size)
    steps = count_steps(algorithm, n)
    epochs = -(-steps // per_epoch)
    if size == n:
        return [np.arange(n)] * steps
    orders = shuffles(np.array([key], dtype=np.uint64), epochs, n)[0]
    rows = [order[start : start + size] for order in orders for start in range(0, n, size)]
    return rows[:steps]


def local_update(
    algorithm: Algorithm, loss_gradient: LossGradient, broadcast: Tree, client: Tree, x: Any, y: Any, key: int
) -> tuple[dict[str, Aggregate], Tree, float]:
    """Run ``start``, the steps and ``finish`` for one client.

    Args:
        algorithm: the pure functions.
        loss_gradient: ``(params, x, y) -> (mean loss, gradient)``.
        broadcast: what the server sent.
        client: the client's private state.
        x: inputs, one row an example.
        y: targets.
        key: random key of this client in this request.

    Returns:
        The reply, the new private state and the mean loss over the steps.
    """
    local = algorithm.start(broadcast, client)
    losses: list[float] = []
    for rows in batch_rows(algorithm, len(y), key):
        seen: list[float] = []

        def grad(params: Tree, rows: Any = rows, seen: list[float] = seen) -> Tree:
            loss, gradient = loss_gradient(params, x[rows], y[rows])
            seen.append(float(loss))
            return gradient

        local = algorithm.step(local, grad, broadcast)
        losses.append(seen[0] if seen else 0.0)
    work = LocalWork(float(len(y)), float(len(losses)))
    reply, state = algorithm.finish(local, broadcast, client, work)
    return reply, state, float(np.mean(losses)) if losses else 0.0
