"""How nodes mix what they share with neighbours: the shared part of a state, mixing matrices, and the exchange itself.

A step costs one superstep: each node posts one envelope per neighbour, and the relay delivers them with the next superstep. Each envelope is
metered where it leaves (up) and where it arrives (down). A letter has one content per recipient, so nodes mix one by one. The local
update before it is a separate request, which may run in blocks.

With a compressor it is CHOCO gossip (Koloskova, Stich, Jaggi 2019, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication", Algorithm 1): node i has a public copy ``c_i`` that all its neighbours know and sends ``q_i = C(x_i - c_i)``. All add it to their
copies, and ``x_i <- x_i + gamma sum_j W_ij (c_j - c_i)``. An unbiased compressor with variance ``omega`` is damped by ``1 / (1 + omega)``, which makes it
the contraction that this needs. A node keeps ``c_i`` and ``s_i = sum_j W_ij c_j``, two models whatever its degree.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.stage import Estimated, Stage, StageContext, WithMemory
from atoll.core.requests.task import Task

from ..wrapped import bits_of
from .graphs import Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

__all__ = [
    "Mixer",
    "Share",
    "check_matrix",
    "components",
    "contraction",
    "mean_states",
    "metropolis",
    "mixing_matrix",
    "pick_shared",
    "pull_leaves",
    "require_connected",
    "with_shared",
]


Share = Literal["state", "params"]
"""The whole server's state (momentum, control variates), or only the parameters."""


def pick_shared(node: Tree, share: Share) -> dict[str, Any]:
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


def pull_leaves(
    mine: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, Any]:
    """Return ``x_i + sum_j W_ij (x_j - x_i)``: a row of ``W X``, computed so that equal neighbours change nothing, bit for bit."""
    return {
        path: value + sum(weights[name] * (np.asarray(other[path]) - value) for name, other in others.items())
        for path, value in mine.items()
    }


def mean_states(states: list[Tree], weights: list[float]) -> Tree:
    """Return the weighted mean of the floating-point leaves of some states; of whole numbers in arrays, a model's counters, the largest; everything else from the first state."""
    total = float(sum(weights))
    rows = [dict(T.items(state)) for state in states]

    def mean(path: str, leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iub":
            return np.max(np.stack([row[path] for row in rows]), axis=0)
        if not _floating(leaf):
            return leaf
        away = [w / total * (np.asarray(row[path]) - leaf) for w, row in zip(weights[1:], rows[1:], strict=True)]
        return _like(leaf, leaf + sum(away))

    return T.rebuild(states[0], [mean(path, leaf) for path, leaf in T.items(states[0])])


# ---------------------------------------------------------------- mixing matrices


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
    return _make_matrix(graph, np.asarray(members, dtype=np.int64).tobytes(), int(key))


@functools.lru_cache(maxsize=2)  # all nodes of a round ask for the same n x n matrix
def _make_matrix(graph: Graph, members: bytes, key: int) -> NDArray[np.float64]:
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


# ---------------------------------------------------------------- mixing by sealed letters


@dataclass(frozen=True, eq=False)
class Mixer:
    """Mixes ``island.state`` of the nodes of a graph.

    Attributes:
        graph: the graph of the nodes that take part, in the order of their positions.
        names: names of the whole population, by position.
        steps: number of mixing steps.
        share: which part of the state to mix.
        compress: the compressor of CHOCO, ``None`` for plain mixing.
        gamma: step size of CHOCO.
    """

    graph: Graph
    names: Sequence[str]
    steps: int = 1
    share: Share = "state"
    compress: Stage | None = None
    gamma: float = 1.0

    @property
    def task(self) -> Task:
        """The task of a superstep, with the message ``{"key", "round", "step", "members"}``."""
        return Task("atoll.learn.topology:mix", self._task)

    async def mix(self, fed: Federation, nodes: Parties, number: int, key: int) -> tuple[Parties, int]:
        """Run the steps among these nodes; return the nodes that finished, and how many messages arrived.

        A node lost before it posts is not in the round. A node lost after it posted has given but not taken, so the mean moves.
        """
        everyone = len(nodes) == len(self.names)
        message = {"key": key, "round": number, "members": None if everyone else self._places_of(nodes)}
        last = await fed.exchange(nodes, self.task, {**message, "step": 0}, at=(number, 0))
        heard = 0
        for step in range(1, self.steps + 1):
            mail = last.mail.only_from(set(last.senders.names))
            heard += len(mail.routes)
            last = await fed.exchange(last.senders, self.task, {**message, "step": step}, mail=mail, at=(number, step))
        return last.senders, heard

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """The place of each node among the names; its position in a federation of more parties is another."""
        return {str(name): place for place, name in enumerate(self.names)}

    def _places_of(self, nodes: Parties) -> NDArray[np.int64]:
        return np.array(sorted(self.places[name] for name in nodes.names), dtype=np.int64)

    def declared(self, node: Tree) -> int | None:
        """Return the bits that the compressor declares for one message of a node in this state; ``None`` without a compressor, or if it cannot tell."""
        return None if self.compress is None else bits_of(Chain((self.compress,)), pick_shared(node, self.share))

    def weights(self, position: int, key: int, members: Any) -> tuple[dict[str, float], float]:
        """Return ``W_ij`` of a node's neighbours by name, and ``W_ii``."""
        known = np.arange(len(self.names)) if members is None else np.asarray(members)
        row = mixing_matrix(self.graph, known, int(key))[int(np.searchsorted(known, position))]
        places = [int(j) for j in np.flatnonzero(row) if int(known[j]) != position]
        own = 1.0 - sum(float(row[j]) for j in places)
        return {str(self.names[int(known[j])]): float(row[j]) for j in places}, own

    def weights_at(self, island: Island, message: Tree) -> tuple[dict[str, float], float]:
        """Return `weights` of the node of an island; a subclass may look at what the node knows."""
        return self.weights(self.places[island.name], message["key"], message["members"])

    def begin_state(self, node: Tree) -> Tree:
        """Return a node's first state; with a compressor also the public copies, which all start at the common model."""
        if self.compress is None:
            return node
        values = pick_shared(node, self.share)
        return {**node, "copy": values, "around": dict(values)}

    def _task(self, island: Island, message: Tree) -> Tree:
        weights, own = self.weights_at(island, message)
        step = int(message["step"])
        node = island.state
        if step:
            node = self._fold_inbox(node, island.inbox, weights, message)
        if step < self.steps:
            node, sent = self._make_message(node, own, message, island.rng)
            for name in weights:
                island.post(name, sent)
        island.state = node
        return {}

    def _make_message(self, node: Tree, own: float, message: Tree, rng: Rng) -> tuple[Tree, Tree]:
        """Return the message to the neighbours, and the node afterwards."""
        values = pick_shared(node, self.share)
        if self.compress is None:
            return node, values
        off = {path: value - node["copy"][path] for path, value in values.items()}
        known = self._public(message, int(message["step"]))
        wire = self.compress.encode(off, StageContext.of(rng.child("compress"), known))
        q = self._read(wire, known, off)
        copy = {path: value + q[path] for path, value in node["copy"].items()}
        around = {path: value + own * q[path] for path, value in node["around"].items()}
        return {**node, "copy": copy, "around": around}, wire

    def _fold_inbox(self, node: Tree, inbox: dict[str, Tree], weights: dict[str, float], message: Tree) -> Tree:
        """Return the node after its neighbours' messages."""
        values = pick_shared(node, self.share)
        if self.compress is None:
            return with_shared(node, pull_leaves(values, inbox, weights), self.share)
        known = self._public(message, int(message["step"]) - 1)
        around = dict(node["around"])
        for name, wire in inbox.items():
            q = self._read(wire, known, values)
            around = {path: value + weights[name] * q[path] for path, value in around.items()}
        moved = {p: value + self.gamma * (around[p] - node["copy"][p]) for p, value in values.items()}
        return {**with_shared(node, moved, self.share), "around": around}

    def _read(self, wire: Tree, known: Tree, like: Tree) -> Tree:
        """Return a decoded difference, damped if the compressor is unbiased; ``like`` has its form."""
        stage = self.compress or Stage()
        omega = facet(stage, Estimated).omega(like) if stage.unbiased else None
        factor = 1.0 / (1.0 + omega) if omega else 1.0
        return T.map(lambda leaf: np.asarray(leaf) * factor, facet(stage, WithMemory).decode_one(wire, known, None))

    def _public(self, message: Tree, step: int) -> Tree:
        stage = self.compress or Stage()
        return stage.public(Rng(int(message["key"])).child("public", int(message["round"]), step))
