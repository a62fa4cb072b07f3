"""A server's cache: one model for every client, as columns, and their weighted mean; and models rebuilt from updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.aggregate import Part

    from ..staleness import Staleness

__all__ = ["aged", "begun", "rebuilt", "replaced", "resummed", "weighed"]


def begun(params: Tree, clients: int) -> Tree:
    """Start with the initial model as every client's entry: ``{"rows": leaves (clients, ...), "mean": float64 leaves, "entered": round of each entry}``."""
    rows = T.map(lambda leaf: np.repeat(np.asarray(leaf)[None], clients, axis=0), params)
    mean = T.map(lambda leaf: np.asarray(leaf, dtype=np.float64), params)
    return {"rows": rows, "mean": mean, "entered": np.zeros(clients, dtype=np.int64)}


def replaced(cache: Tree, places: NDArray[np.int64], models: Tree, shares: NDArray[np.float64], turn: int) -> Tree:
    """Return the cache with new entries. The mean moves by the changes, so that the cost grows with the changes only.

    ``mean <- mean + sum_k share_k (model_k - entry_k)``. The rows change in place.

    Args:
        cache: the cache before.
        places: rows, each at most once.
        models: leaves ``(len(places), ...)``, or ``(1, ...)`` for one model in all rows.
        shares: share of every client in the mean, ``(clients,)``; they sum to 1.
        turn: the round.
    """
    if not len(places):
        return cache
    weights = shares[places]

    def moved(mean: Any, rows: Any, fresh: Any) -> Any:
        change = np.asarray(fresh, dtype=np.float64) - rows[places]
        rows[places] = fresh
        return mean + np.tensordot(weights, change, axes=1)

    entered = cache["entered"].copy()
    entered[places] = turn
    return {**cache, "mean": T.map(moved, cache["mean"], cache["rows"], models), "entered": entered}


def resummed(cache: Tree, shares: NDArray[np.float64]) -> Tree:
    """Return the mean of all rows, computed from scratch: ``mean`` must equal it up to rounding."""
    return T.map(lambda rows: np.tensordot(shares, rows.astype(np.float64), axes=1), cache["rows"])


def aged(cache: Tree, shares: NDArray[np.float64], weights: NDArray[np.float64]) -> Tree:
    """Return the mean of all rows with shares times weights, normalised to sum to 1; float64 leaves."""
    mixed = shares * weights
    return resummed(cache, mixed / mixed.sum())


def weighed(cache: Tree, shares: NDArray[np.float64], turn: int, staleness: Staleness | None) -> Tree:
    """Return the mean of the cache, with entries weighted by age if ``staleness`` is set."""
    if staleness is None:
        return cache["mean"]
    kinds, which = np.unique(turn - cache["entered"], return_inverse=True)
    return aged(cache, shares, np.array([staleness.weight(int(age)) for age in kinds])[which])


def rebuilt(parts: list[Part], versions: NDArray[np.int64], bases: Tree, params: Tree) -> Tree:
    """Return the clients' models, ``(replies, ...)``: the base that each received plus its update."""
    if not parts:
        return T.map(lambda leaf: np.asarray(leaf)[None][:0], params)
    updates = T.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *[part.value for part in parts])
    kinds, which = np.unique(versions, return_inverse=True)
    known = [bases[str(v)]["broadcast"]["params"] for v in kinds.tolist()]
    return T.map(lambda update, *bases: update + np.stack(bases)[which], updates, *known)
