"""Mixing matrices: how much each node takes from each neighbour."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError

from .graphs import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_matrix", "components", "contraction", "metropolis", "mixing_matrix", "require_connected"]


def metropolis(n: int, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``W_ij = 1 / (1 + max(deg_i, deg_j))`` on the links, the rest on the diagonal: symmetric and doubly stochastic, shape ``(n, n)``.

    Each node needs to know only its own degree and its neighbours' degrees.
    """
    matrix = np.zeros((n, n))
    degree = np.bincount(edges.ravel(), minlength=n)
    a, b = edges[:, 0], edges[:, 1]
    matrix[a, b] = matrix[b, a] = 1.0 / (1.0 + np.maximum(degree[a], degree[b]))
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix


def mixing_matrix(graph: Graph, members: NDArray[np.int64], key: int) -> NDArray[np.float64]:
    """Return the read-only Metropolis matrix, ``(n, n)``, of a graph of nodes (positions, sorted) drawn from a key.

    The last two matrices are cached, at most ``16 n^2`` bytes.
    """
    return _made(graph, np.asarray(members, dtype=np.int64).tobytes(), int(key))


@functools.lru_cache(maxsize=2)  # all nodes of a round ask for the same n x n matrix
def _made(graph: Graph, members: bytes, key: int) -> NDArray[np.float64]:
    known = np.frombuffer(members, dtype=np.int64)
    matrix = metropolis(len(known), graph.among(known, Rng(key)))
    matrix.setflags(write=False)
    return matrix


def check_matrix(matrix: NDArray[np.float64]) -> None:
    """Refuse a matrix that does not keep the mean: it must be symmetric, non-negative, and every row must add up to 1.

    Raises:
        ConfigError: the matrix is not.
    """
    faults = {
        "not square": matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1],
        "negative somewhere": bool((matrix < -1e-12).any()),
    }
    if not any(faults.values()):
        faults["not symmetric"] = not np.allclose(matrix, matrix.T, atol=1e-12)
        faults["not stochastic: some row does not add up to 1"] = not np.allclose(matrix.sum(axis=1), 1.0, atol=1e-12)
    for fault, there in faults.items():
        if there:
            raise ConfigError(
                f"the mixing matrix is {fault}",
                where="mixing matrix",
                remedy="use Metropolis weights: metropolis(n, edges)",
            )


def contraction(matrix: NDArray[np.float64]) -> float:
    """Return the second largest eigenvalue by magnitude: a mixing step shrinks the distance to the mean at least by this factor."""
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    return float(values[-2]) if len(values) > 1 else 0.0


def components(n: int, edges: NDArray[np.int64]) -> list[list[int]]:
    """Return the connected parts, each sorted, by their first node."""
    root = list(range(n))

    def top(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    for a, b in edges.tolist():
        root[max(top(a), top(b))] = min(top(a), top(b))
    parts: dict[int, list[int]] = {}
    for i in range(n):
        parts.setdefault(top(i), []).append(i)
    return [parts[i] for i in sorted(parts)]


def require_connected(
    graph: Graph, n: int, key: int, names: list[str] | None = None, child: tuple[str | int, ...] = ()
) -> None:
    """Refuse a graph in which some nodes can never reach others; a changing graph is judged by its base.

    Raises:
        CompositionError: the graph is disconnected; names its parts.
    """
    stream = Rng(key).child(*child) if child else Rng(key)
    base = getattr(graph, "base", graph)
    parts = components(n, base.edges(n, stream.child("base") if graph.changes else stream))
    if len(parts) == 1:
        return
    known = [str(i) for i in range(n)] if names is None else names
    shown = "; ".join(", ".join(known[i] for i in part[:6]) + (", ..." if len(part) > 6 else "") for part in parts[:6])
    more = f"; and {len(parts) - 6} more" if len(parts) > 6 else ""
    raise CompositionError(
        f"{type(base).__name__} falls into {len(parts)} parts: {shown}{more}",
        where="topology.graph",
        remedy="add links (a larger radius, probability or degree), or use Ring()",
    )
