"""Graphs of neighbours, fixed, drawn anew or with nodes that join and leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.validation import Checked, pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "Complete",
    "EdgeList",
    "ErdosRenyi",
    "Expander",
    "Geometric",
    "Graph",
    "Membership",
    "Ring",
    "StarGraph",
    "TimeVarying",
    "Torus",
]


@dataclass(frozen=True)
class Membership:
    """A schedule of members. The graph of a round has its members, in the order of their positions.

    A node that joins starts from the state that a neighbour sends; it keeps nothing from earlier.

    Attributes:
        joins: ``(node, round)``: the node is absent before this round.
        leaves: ``(node, round)``: the node is absent from this round on.
    """

    joins: tuple[tuple[int, int], ...] = ()
    leaves: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("joins", "leaves"):
            found = pairs("Membership", name, getattr(self, name))
            object.__setattr__(self, name, found)
            if any(node < 0 or number < 1 for node, number in found):
                raise ConfigError(
                    f"{name}={found}", where="Membership", remedy="give (node, round) with nodes from 0, rounds from 1"
                )
        for node in {node for node, _ in (*self.joins, *self.leaves)}:
            moves = self._moves(node)
            if any(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(moves)):
                raise ConfigError(
                    f"node {node} moves at {moves}", where="Membership", remedy="let it join and leave alternately"
                )

    def _moves(self, node: int) -> list[tuple[int, bool]]:
        """Return ``(round, whether the node is present from then on)``, in order."""
        came = [(number, True) for i, number in self.joins if i == node]
        return sorted(came + [(number, False) for i, number in self.leaves if i == node])

    def at(self, number: int, n: int) -> NDArray[np.int64]:
        """Return the positions of the members of a round, sorted."""
        return np.array([i for i in range(n) if self._there(i, number)], dtype=np.int64)

    def joined(self, number: int, n: int) -> NDArray[np.int64]:
        """Return the positions of nodes in their first round after an absence; empty in round 1."""
        if number == 1:
            return np.zeros(0, dtype=np.int64)
        return np.setdiff1d(self.at(number, n), self.at(number - 1, n))

    def changes(self) -> list[int]:
        """Return the rounds in which a node joins or leaves, and round 1."""
        return sorted({1, *(r for _, r in (*self.joins, *self.leaves))})

    def check(self, n: int) -> None:
        """Refuse a schedule of unknown nodes, or one with a round in which no member of the round before stays to welcome others.

        Raises:
            ConfigError: the schedule is impossible.
        """
        strange = [node for node, _ in (*self.joins, *self.leaves) if node >= n]
        if strange:
            raise ConfigError(f"node {strange[0]} of {n}", where="Membership", remedy=f"use nodes 0 to {n - 1}")
        for number in self.changes():
            staying = np.setdiff1d(self.at(number, n), self.joined(number, n))
            if not len(staying):
                raise ConfigError(
                    f"in round {number}, no node from the round before is present",
                    where="Membership",
                    remedy="let some node stay",
                )

    def _there(self, node: int, number: int) -> bool:
        moves = self._moves(node)
        before = [there for r, there in moves if r <= number]
        return before[-1] if before else not moves or not moves[0][1]


# ---------------------------------------------------------------- graphs of nodes: the neighbours of each node


@dataclass(frozen=True)
class Graph(Checked):
    """Base class of undirected graphs on nodes ``0 .. n-1``.

    A graph is drawn once per run, from the run's seed; ``TimeVarying`` draws one for every round.
    """

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the edges, shape ``(edges, 2)``, each once; ``rng`` is the stream of a random graph."""
        raise NotImplementedError

    def among(self, members: NDArray[np.int64], rng: Rng) -> NDArray[np.int64]:
        """Return the edges of a graph of these nodes (positions, sorted), as pairs of indices into ``members``."""
        return self.edges(len(members), rng)

    @property
    def changes(self) -> bool:
        """Whether every round has its own graph."""
        return False


@dataclass(frozen=True)
class Ring(Graph):
    """A circle: each node is linked to the next ``neighbours`` on either side.

    Attributes:
        neighbours: number of neighbours on each side.
    """

    neighbours: int = 1

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ConfigError(f"neighbours={self.neighbours}", where="Ring", remedy="use at least 1")

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return ``i - (i + k) mod n``."""
        del rng
        return _unique([(i, (i + k) % n) for k in range(1, self.neighbours + 1) for i in range(n)])


@dataclass(frozen=True)
class Torus(Graph):
    """A grid with joined opposite borders: every node has four neighbours.

    Attributes:
        rows: rows of the grid, a divisor of the number of nodes; by default the largest one up to its square root.
    """

    rows: int | None = None

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the links right and down, across the borders."""
        del rng
        rows = max(r for r in range(1, int(n**0.5) + 1) if n % r == 0) if self.rows is None else self.rows
        if rows < 1 or n % rows:
            raise ConfigError(f"rows={rows} does not divide {n} nodes", where="Torus", remedy="use a divisor, or None")
        columns = n // rows
        at = [(r, c) for r in range(rows) for c in range(columns)]
        right = [(r * columns + c, r * columns + (c + 1) % columns) for r, c in at]
        down = [(r * columns + c, (r + 1) % rows * columns + c) for r, c in at]
        return _unique([*right, *down])


@dataclass(frozen=True)
class Complete(Graph):
    """Links all pairs of nodes: one mixing step gives the mean."""

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return all pairs."""
        del rng
        return np.argwhere(np.triu(np.ones((n, n), dtype=bool), 1)).astype(np.int64)


@dataclass(frozen=True)
class StarGraph(Graph):
    """One node in the middle, linked to all others: a server that also trains.

    Attributes:
        centre: index of this node.
    """

    centre: int = 0

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the links from the centre to all other nodes."""
        del rng
        if not 0 <= self.centre < n:
            raise ConfigError(f"centre={self.centre} of {n} nodes", where="StarGraph", remedy=f"use 0 to {n - 1}")
        return _unique([(self.centre, i) for i in range(n) if i != self.centre])


@dataclass(frozen=True)
class Expander(Graph):
    """A random graph in which every node has ``degree`` neighbours: few links, but short paths between all nodes.

    It is the union of ``degree // 2`` random circles (plus a random pairing if the degree is odd), so it is connected. Nodes of a circle swap
    places until no link is double. With very few nodes, one link may stay double, and its ends then have one neighbour less.

    Attributes:
        degree: at least 2; odd only with an even number of nodes.
    """

    degree: int = 4

    def __post_init__(self) -> None:
        if self.degree < 2:
            raise ConfigError(f"degree={self.degree}", where="Expander", remedy="use at least 2")

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the circles and the pairing."""
        if self.degree >= n or (self.degree % 2 and n % 2):
            raise ConfigError(
                f"degree={self.degree} with {n} nodes",
                where="Expander",
                remedy="use a degree below the number of nodes, even if that is odd",
            )
        draw = rng.generator()
        links = np.zeros((n, n), dtype=bool)
        for _ in range(self.degree // 2):
            _add(links, draw, lambda order: (order, np.roll(order, 1)))
        if self.degree % 2:
            _add(links, draw, lambda order: (order[::2], order[1::2]))
        return np.argwhere(np.triu(links | links.T, 1)).astype(np.int64)


def _add(links: NDArray[np.bool_], draw: np.random.Generator, ends: Callable[[Any], tuple[Any, Any]]) -> None:
    """Add a random circle or pairing to the links; nodes swap places while that reduces the number of duplicate links."""
    n = len(links)
    order = draw.permutation(n)
    double = int(links[ends(order)].sum())
    for _ in range(100 * n):
        if not double:
            break
        other = order.copy()
        a, b = draw.choice(n, 2, replace=False)
        other[[a, b]] = other[[b, a]]
        left = int(links[ends(other)].sum())
        if left <= double:
            order, double = other, left
    a, b = ends(order)
    links[a, b] = links[b, a] = True


@dataclass(frozen=True)
class ErdosRenyi(Graph):
    """Every pair is linked with the same probability. Above ``log(n)/n`` such a graph is almost surely connected.

    Attributes:
        probability: probability of a link, in (0, 1].
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise ConfigError(f"probability={self.probability}", where="ErdosRenyi", remedy="use a number in (0, 1]")

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return each pair with the given probability."""
        coins = rng.generator().random((n, n)) < self.probability
        return np.argwhere(np.triu(coins, 1)).astype(np.int64)


@dataclass(frozen=True)
class Geometric(Graph):
    """Nodes at random places of the unit square, linked if they are close, like radios.

    Attributes:
        radius: reach of a link.
    """

    radius: float = 0.4

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ConfigError(f"radius={self.radius}", where="Geometric", remedy="use a positive number")

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the pairs within reach."""
        places = rng.generator().random((n, 2))
        far = ((places[:, None] - places[None]) ** 2).sum(axis=2)
        return np.argwhere(np.triu(far <= self.radius**2, 1)).astype(np.int64)


@dataclass(frozen=True)
class EdgeList(Graph):
    """A graph given as a list of links.

    Attributes:
        links: pairs of node indices, in the order of the federation's clients.
    """

    links: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", pairs("EdgeList", "links", self.links))

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the links as given."""
        del rng
        for a, b in self.links:
            if not (0 <= a < n and 0 <= b < n) or a == b:
                raise ConfigError(
                    f"the link {(a, b)} among {n} nodes", where="EdgeList", remedy=f"link two of the nodes 0 to {n - 1}"
                )
        return _unique(list(self.links))


@dataclass(frozen=True)
class TimeVarying(Graph):
    """A new graph in every round: the base drawn again, its nodes at other places, and some links down.

    A round's graph may be disconnected; over the rounds, every node is reached.

    Attributes:
        base: the graph to draw.
        up: share of the links that work in a round, in (0, 1].
    """

    base: Graph = field(default_factory=Ring)
    up: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.up <= 1.0:
            raise ConfigError(f"up={self.up}", where="TimeVarying", remedy="use a share in (0, 1]")

    @property
    def changes(self) -> bool:
        """Yes."""
        return True

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the edges of this round."""
        draw = rng.child("places").generator()
        found = draw.permutation(n)[self.base.edges(n, rng.child("base"))]
        return _unique(found[draw.random(len(found)) < self.up].tolist())


def _unique(pairs: list[Any]) -> NDArray[np.int64]:
    """Return each pair once, smaller index first, without loops."""
    found = np.sort(np.array(pairs, dtype=np.int64).reshape(-1, 2), axis=1)
    return np.unique(found[found[:, 0] != found[:, 1]], axis=0)
