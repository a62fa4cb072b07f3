"""The part of a node's state that nodes share: the floating-point leaves of a server's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

__all__ = ["Share", "mean_states", "pulled", "shared", "with_shared"]

Share = Literal["state", "params"]
"""The whole server's state (momentum, control variates), or only the parameters."""


def shared(node: Tree, share: Share) -> dict[str, Any]:
    """Return the leaves to mix, by path. Counters and flags cannot be averaged and stay with their node."""
    scope = _scope(node, share)
    return {path: np.asarray(leaf) for path, leaf in T.items(scope) if _floating(leaf)}


def with_shared(node: Tree, values: Mapping[str, Any], share: Share) -> Tree:
    """Return the node with other values for these leaves, of the same types."""
    scope = _scope(node, share)
    fresh = [_like(leaf, values[path]) if path in values else leaf for path, leaf in T.items(scope)]
    made = T.rebuild(scope, fresh)
    if share == "state":
        return {**node, **made}
    return {**node, "server": {**node["server"], "params": made["params"]}, "buffers": made["buffers"]}


def _scope(node: Tree, share: Share) -> Tree:
    server = node["server"]
    if share == "state":
        return {"server": server, "buffers": node["buffers"]}
    return {"params": server["params"], "buffers": node["buffers"]}


def _floating(leaf: Any) -> bool:
    return isinstance(leaf, float) or (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind == "f")


def _like(leaf: Any, value: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.asarray(value, dtype=leaf.dtype)
    return leaf.dtype.type(value) if isinstance(leaf, np.generic) else float(value)


def pulled(
    mine: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, Any]:
    """Return ``x_i + sum_j W_ij (x_j - x_i)``: a row of ``W X``, computed so that equal neighbours change nothing, bit for bit."""
    return {
        path: value + sum(weights[name] * (np.asarray(other[path]) - value) for name, other in others.items())
        for path, value in mine.items()
    }


def mean_states(states: list[Tree], weights: list[float]) -> Tree:
    """Return the weighted mean of the floating-point leaves of some states; everything else from the first state."""
    total = float(sum(weights))
    rows = [dict(T.items(state)) for state in states]

    def mean(path: str, leaf: Any) -> Any:
        if not _floating(leaf):
            return leaf
        away = [w / total * (np.asarray(row[path]) - leaf) for w, row in zip(weights[1:], rows[1:], strict=True)]
        return _like(leaf, leaf + sum(away))

    return T.rebuild(states[0], [mean(path, leaf) for path, leaf in T.items(states[0])])
