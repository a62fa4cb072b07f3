"""Few clients that represent all: submodular functions of sets of clients, greedy maximisation, and the rules that use them.

A set function is submodular if a client adds less, the more clients were chosen before. For such a function that never decreases, repeatedly choosing the
largest gain reaches at least ``1 - 1/e`` of the best value of any set of the same size (Nemhauser, Wolsey and Fisher 1978). The lazy version gives the same
set (Minoux 1978), because a gain computed earlier is an upper bound.

Clients are described by vectors (sketches of their updates) or by profiles (a mean and a variance per element).
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.party import Parties

from ..checks import require_count
from .base import Candidates, Seen, members, places_among, places_of
from .uniform import Uniform

__all__ = [
    "Coverage",
    "DivFL",
    "FacilityLocation",
    "LogDeterminant",
    "Submodular",
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


# ---------------------------------------------------------------- representative clients


def require_pool(where: str, pool: float) -> None:
    """Refuse a share outside (0, 1].

    Raises:
        ConfigError: the share is outside.
    """
    if not 0 < pool <= 1:
        raise ConfigError(f"pool={pool}", where=where, remedy="use a share above 0 and up to 1")


def among_some(
    alike: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    there: NDArray[np.int64],
    count: int,
    pool: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Choose clients that represent all clients, greedily, from a random pool of the available ones.

    Args:
        alike: similarities of all clients, ``(clients, clients)``.
        weights: weights of all clients; ``None`` weights them equally.
        there: available clients, as rows of ``alike``, ascending.
        count: the largest number of clients to choose.
        pool: share of ``there`` to consider, at least ``count`` clients.
        rng: draws the pool.

    Returns:
        Indices into ``there``, in the order of choice.
    """
    size = min(len(there), max(count, math.ceil(pool * len(there))))
    some = np.sort(rng.choice(len(there), size=size, replace=False))
    chosen, _ = lazy_greedy(_Among(alike, weights, among=there[some]), min(count, size))
    return np.asarray(some[chosen])


@dataclass(frozen=True, eq=False)
class _Among(FacilityLocation):
    """Facility location over all clients in which only some may be chosen."""

    among: NDArray[np.int64] = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.among)

    def gain(self, state: NDArray[np.float64], client: int) -> float:
        return super().gain(state, int(self.among[client]))

    def add(self, state: NDArray[np.float64], client: int) -> NDArray[np.float64]:
        return super().add(state, int(self.among[client]))


# ---------------------------------------------------------------- submodular selection


@dataclass(frozen=True)
class Submodular(Uniform):
    """Invites clients with profiles close to those of all clients: ``max_{|S| = count} sum_i v_i max_{j in S} s_ij``, greedily.

    ``s_ij`` is the largest divergence between two profiles minus that of i and j, and ``v_i`` the client's examples. The greedy set has at least
    ``1 - 1/e`` of the best value of all sets of clients considered (Nemhauser, Wolsey and Fisher 1978); see `lazy_greedy`. Submodular
    selection of clients follows R. Balakrishnan et al., "Diverse Client Selection for Federated Learning via Submodular Maximization", ICLR 2022,
    with profiles instead of gradients: ``2 q`` numbers per client and no gradients.

    Profiles are comparable only if one model made them. So the rule asks all available clients again every ``every`` rounds, before the round.
    Similarities take memory and time quadratic in the number of clients.

    Attributes:
        count: clients per round, as in ``Uniform``.
        layer: the layer to profile; see ``FedProf``.
        every: rounds between surveys.
        pool: share of the clients, drawn anew each round, that the rule considers; 1 chooses the same clients until the next survey.
        weighted: whether clients count by their examples, or equally.
    """

    surveys_only: ClassVar[bool] = True
    citation: ClassVar[str] = "Balakrishnan et al. 2022, Diverse Client Selection for FL via Submodular Maximization"
    layer: str = "auto"
    every: int = 10
    pool: float = 0.5
    weighted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("Submodular", every=self.every)
        require_pool("Submodular", self.pool)

    @property
    def reports(self) -> Mapping[str, Any]:
        """The profile."""
        return {"profile": {"layer": self.layer}}

    def init(self, parties: Parties) -> Tree:
        """Start with no profiles."""
        del parties
        return {"round": 0, "who": np.zeros(0, dtype=np.int64)}

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return all available clients, every ``every`` rounds."""
        del count
        due = state["round"] == 0 or candidates.round - state["round"] >= self.every
        return np.arange(len(candidates.parties)) if due else None

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Store the similarities of clients with rows.

        Raises:
            DataError: no client has rows.
        """
        told = [(p, n) for p, n in zip(seen.reports.get("profile", []), seen.examples, strict=True) if n > 0]
        if not told:
            raise DataError(
                "no client sent a profile",
                where=f"Submodular, round {seen.round}",
                remedy="check the partition and the deadline",
            )
        means, variances = (np.array([p[name] for p, _ in told], dtype=np.float64) for name in ("mean", "var"))
        who = seen.replied.positions[seen.examples > 0]
        alike = closeness(divergences(means, variances))
        return {"round": seen.round, "who": who, "examples": np.array([n for _, n in told]), "alike": alike}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the greedy choice from a pool of available clients."""
        where = candidates.parties.positions
        there = np.flatnonzero(np.isin(state["who"], where))
        weights = state["examples"] if self.weighted else None
        chosen = there[among_some(state["alike"], weights, there, count, self.pool, candidates.rng.generator())]
        return places_among(where, state["who"][chosen])


# ---------------------------------------------------------------- DivFL


@dataclass(frozen=True)
class DivFL(Uniform):
    """Invites clients with last updates close to those of all clients: ``max_{|S| = count} sum_i max_{j in S} (max d - d_ij)``, greedily.

    ``d_ij`` is the distance between two clients' last updates, from sketches of ``size`` numbers in their replies (`atoll.learn.local.reports`): no survey,
    and only a few numbers more per reply. Clients that have not replied yet come first. Updates of different rounds are compared directly, as in the
    variant of the paper that asks for no gradients beforehand.

    R. Balakrishnan et al., "Diverse Client Selection for Federated Learning via Submodular Maximization", ICLR 2022, with sketches instead of gradients. The
    greedy set has at least ``1 - 1/e`` of the best value among the sets considered. Similarities take memory and time quadratic in the number of clients.

    Attributes:
        count: clients per round, as in ``Uniform``.
        size: numbers in a sketch; distances have a relative error of about ``sqrt(2 / size)``.
        pool: share of the clients, drawn anew each round, that the rule considers; 1 considers all clients.
    """

    citation: ClassVar[str] = "Balakrishnan et al. 2022, Diverse Client Selection for FL via Submodular Maximization"
    size: int = 64
    pool: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("DivFL", size=self.size)
        require_pool("DivFL", self.pool)

    @property
    def reports(self) -> Mapping[str, Any]:
        """The sketch."""
        return {"sketch": {"size": self.size}}

    def init(self, parties: Parties) -> Tree:
        """Start with no replies."""
        n = len(parties)
        return {"who": members(parties), "known": np.zeros(n, dtype=bool), "sketch": np.zeros((n, self.size))}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return clients that have not replied yet; then a greedy choice from a pool of those that have."""
        places = places_of(state["who"], candidates.parties.positions)
        known, rng = state["known"][places], candidates.rng.generator()
        fresh = rng.permutation(np.flatnonzero(~known))[:count]
        there, left = np.flatnonzero(known), count - len(fresh)
        if not left or not len(there):
            return fresh
        everybody = np.flatnonzero(state["known"])
        alike = closeness(distances(state["sketch"][everybody]))
        chosen = among_some(alike, None, places_of(everybody, places[there]), left, self.pool, rng)
        return np.concatenate([fresh, there[chosen]])

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Remember the sketches of clients with rows."""
        told, has = seen.reports.get("sketch", []), np.asarray(seen.examples) > 0
        if not len(told) or not has.any():
            return state
        places = places_of(state["who"], seen.replied.positions[has])
        known, sketch = state["known"].copy(), state["sketch"].copy()
        known[places] = True
        sketch[places] = np.asarray(told, dtype=np.float64)[has]
        return {**state, "known": known, "sketch": sketch}
