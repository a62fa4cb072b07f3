"""Few clients that represent all: submodular functions of sets of clients, and greedy maximisation.

A set function is submodular if a client adds less, the more clients were chosen before. For such a function that never decreases, repeatedly choosing the
largest gain reaches at least ``1 - 1/e`` of the best value of any set of the same size (Nemhauser, Wolsey and Fisher 1978). The lazy version gives the same
set (Minoux 1978), because a gain computed earlier is an upper bound.

Clients are described by vectors (sketches of their updates) or by profiles (a mean and a variance per element).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError

__all__ = [
    "Coverage",
    "FacilityLocation",
    "LogDeterminant",
    "closeness",
    "cosines",
    "distances",
    "divergences",
    "lazy_greedy",
]

Floats = NDArray[np.float64]


class Coverage(ABC):
    """A monotone submodular function ``f`` with ``f({}) = 0``, evaluated on a growing set."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of clients."""

    @abstractmethod
    def start(self) -> Any:
        """Return the state of the empty set."""

    @abstractmethod
    def gain(self, state: Any, client: int) -> float:
        """Return ``f(A + client) - f(A)``."""

    @abstractmethod
    def add(self, state: Any, client: int) -> Any:
        """Return the state of ``A + client``."""

    def value(self, clients: ArrayLike) -> float:
        """Return ``f(A)``, as the sum of the gains in the given order."""
        state, total, seen = self.start(), 0.0, set()
        for client in np.asarray(clients, dtype=np.int64).ravel().tolist():
            if client not in seen:
                total += self.gain(state, client)
                state = self.add(state, client)
                seen.add(client)
        return total


@dataclass(frozen=True, eq=False)
class FacilityLocation(Coverage):
    """``f(A) = sum_i v_i max_{j in A} s_ij``: how close all clients are to the nearest chosen client.

    Attributes:
        similarity: ``s_ij >= 0``, ``(clients, clients)``; how well j represents i.
        weights: ``v_i >= 0``, such as the examples of each client; ones by default.
    """

    similarity: Floats
    weights: Floats | None = None

    def __post_init__(self) -> None:
        _square(self.similarity, "FacilityLocation")
        if not (self.similarity >= 0).all():
            raise ConfigError(
                "a negative similarity", where="FacilityLocation", remedy="shift the similarities, as `closeness` does"
            )
        if self.weights is not None and (
            np.shape(self.weights) != (len(self.similarity),) or not (np.asarray(self.weights) >= 0).all()
        ):
            raise ConfigError(
                f"weights of shape {np.shape(self.weights)} for {len(self.similarity)} clients",
                where="FacilityLocation",
                remedy="give one weight of at least 0 per client",
            )

    def __len__(self) -> int:
        return len(self.similarity)

    def start(self) -> Floats:
        """Start with no client represented."""
        return np.zeros(len(self.similarity))

    def gain(self, state: Floats, client: int) -> float:
        """Return the growth of each client's best similarity, summed."""
        grown = np.maximum(self.similarity[:, client] - state, 0.0)
        return float(grown.sum() if self.weights is None else self.weights @ grown)

    def add(self, state: Floats, client: int) -> Floats:
        """Return each client's best similarity."""
        return np.asarray(np.maximum(state, self.similarity[:, client]))


@dataclass(frozen=True, eq=False)
class LogDeterminant(Coverage):
    """``f(A) = log det(I + scale K_A)``: the volume that the chosen clients span. Two similar clients add little more than one.

    Attributes:
        kernel: symmetric and positive semi-definite, ``(clients, clients)``; such as `cosines`.
        scale: how much diversity counts beyond the first clients.
    """

    kernel: Floats
    scale: float = 1.0

    def __post_init__(self) -> None:
        _square(self.kernel, "LogDeterminant")
        if not np.allclose(self.kernel, self.kernel.T) or np.linalg.eigvalsh(self.kernel).min() < -1e-8 * len(self):
            raise ConfigError(
                "a kernel that is not positive semi-definite", where="LogDeterminant", remedy="use cosines(vectors)"
            )
        if not self.scale > 0:
            raise ConfigError(f"scale={self.scale}", where="LogDeterminant", remedy="use a positive number")

    def __len__(self) -> int:
        return len(self.kernel)

    def start(self) -> tuple[Floats, Floats]:
        """Start with no columns of the Cholesky factor over the chosen clients, and the remaining diagonal of each client."""
        return np.zeros((len(self), 0)), 1.0 + self.scale * np.diag(self.kernel)

    def gain(self, state: tuple[Floats, Floats], client: int) -> float:
        """Return the logarithm of the client's own part: at least 0, since ``I`` is never spanned."""
        return float(np.log(max(state[1][client], 1.0)))

    def add(self, state: tuple[Floats, Floats], client: int) -> tuple[Floats, Floats]:
        """Return one more column of the factor of ``I + scale K``, in the order of choice."""
        columns, left = state
        row = self.scale * self.kernel[:, client] - columns @ columns[client]
        row[client] += 1.0
        column = row / np.sqrt(max(left[client], 1.0))
        return np.column_stack([columns, column]), left - column**2


def lazy_greedy(coverage: Coverage, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Choose ``count`` clients, each with the largest gain; ties go to the first.

    Args:
        coverage: the function to maximise.
        count: number of clients.

    Returns:
        The clients in the order of choice, and the gain of each; gains never grow.

    Raises:
        ConfigError: ``count`` is outside ``0..clients``.
    """
    if not 0 <= count <= len(coverage):
        raise ConfigError(
            f"count={count} of {len(coverage)} clients", where="lazy_greedy", remedy="choose from 0 to all clients"
        )
    state, chosen, gains = coverage.start(), list[int](), list[float]()
    heap = [(-coverage.gain(state, client), client, 0) for client in range(len(coverage))]
    heapq.heapify(heap)
    while len(chosen) < count:
        bound, client, when = heapq.heappop(heap)
        if when == len(chosen):
            chosen.append(client)
            gains.append(-bound)
            state = coverage.add(state, client)
        else:
            heapq.heappush(heap, (-coverage.gain(state, client), client, len(chosen)))
    return np.array(chosen, dtype=np.int64), np.array(gains)


def distances(vectors: ArrayLike) -> Floats:
    """Return Euclidean distances between rows, ``(clients, clients)``."""
    x = np.asarray(vectors, dtype=np.float64)
    squares = (x**2).sum(1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * x @ x.T, 0.0))
    np.fill_diagonal(apart, 0.0)
    return np.asarray(apart)


def divergences(means: ArrayLike, variances: ArrayLike, floor: float = 1e-8) -> Floats:
    """Return mean symmetric divergence between profiles, ``(1/2q) sum_i KL(k||l) + KL(l||k)`` of Gaussians, ``(clients, clients)``.

    Args:
        means: ``(clients, q)``.
        variances: ``(clients, q)``.
        floor: the smallest variance.
    """
    m, v = np.asarray(means, dtype=np.float64), np.maximum(np.asarray(variances, dtype=np.float64), floor)
    # The logarithms cancel: KL(k||l) + KL(l||k) = (v_k + d^2) / 2 v_l + (v_l + d^2) / 2 v_k - 1.
    found = np.zeros((len(m), len(m)))
    for k in range(len(m)):
        gap = (m - m[k]) ** 2
        found[k] = (((v[k] + gap) / v + (v + gap) / v[k]) / 4 - 0.5).mean(1)
    np.fill_diagonal(found, 0.0)
    return found


def closeness(apart: ArrayLike) -> Floats:
    """Return similarities for `FacilityLocation`: the largest distance minus each distance.

    Maximising then minimises ``sum_i min_{j in A} d_ij``, the distance of all clients to the nearest chosen client.
    """
    d = np.asarray(apart, dtype=np.float64)
    return np.asarray(d.max(initial=0.0) - d)


def cosines(vectors: ArrayLike) -> Floats:
    """Return cosines between rows, ``(clients, clients)``; a row of zeros is orthogonal to all."""
    x = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
    return np.asarray(unit @ unit.T)


def _square(matrix: Floats, where: str) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise ConfigError(
            f"a matrix of shape {matrix.shape}",
            where=where,
            remedy="give finite numbers, one row and column per client",
        )
