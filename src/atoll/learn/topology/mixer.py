"""Mixing ``X <- W X`` by sealed letters: every node receives from its neighbours only.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.requests.chain import Chain
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import Task

from ..server.declared import bits_of
from .graphs import Graph
from .mixing import mixing_matrix
from .shared import Share, pulled, shared, with_shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

__all__ = ["Mixer"]


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
        return None if self.compress is None else bits_of(Chain((self.compress,)), shared(node, self.share))

    def weights(self, position: int, key: int, members: Any) -> tuple[dict[str, float], float]:
        """Return ``W_ij`` of a node's neighbours by name, and ``W_ii``."""
        known = np.arange(len(self.names)) if members is None else np.asarray(members)
        row = mixing_matrix(self.graph, known, int(key))[int(np.searchsorted(known, position))]
        places = [int(j) for j in np.flatnonzero(row) if int(known[j]) != position]
        own = 1.0 - sum(float(row[j]) for j in places)
        return {str(self.names[int(known[j])]): float(row[j]) for j in places}, own

    def begun(self, node: Tree) -> Tree:
        """Return a node's first state; with a compressor also the public copies, which all start at the common model."""
        if self.compress is None:
            return node
        values = shared(node, self.share)
        return {**node, "copy": values, "around": dict(values)}

    def _task(self, island: Island, message: Tree) -> Tree:
        weights, own = self.weights(self.places[island.name], message["key"], message["members"])
        step = int(message["step"])
        node = island.state
        if step:
            node = self._received(node, island.inbox, weights, message)
        if step < self.steps:
            node, sent = self._sent(node, own, message, island.rng)
            for name in weights:
                island.post(name, sent)
        island.state = node
        return {}

    def _sent(self, node: Tree, own: float, message: Tree, rng: Rng) -> tuple[Tree, Tree]:
        """Return the message to the neighbours, and the node afterwards."""
        values = shared(node, self.share)
        if self.compress is None:
            return node, values
        off = {path: value - node["copy"][path] for path, value in values.items()}
        known = self._public(message, int(message["step"]))
        wire = self.compress.encode(off, StageContext.of(rng.child("compress"), known))
        q = self._read(wire, known, off)
        copy = {path: value + q[path] for path, value in node["copy"].items()}
        around = {path: value + own * q[path] for path, value in node["around"].items()}
        return {**node, "copy": copy, "around": around}, wire

    def _received(self, node: Tree, inbox: dict[str, Tree], weights: dict[str, float], message: Tree) -> Tree:
        """Return the node after its neighbours' messages."""
        values = shared(node, self.share)
        if self.compress is None:
            return with_shared(node, pulled(values, inbox, weights), self.share)
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
        omega = stage.omega(like) if stage.unbiased else None
        factor = 1.0 / (1.0 + omega) if omega else 1.0
        return T.map(lambda leaf: np.asarray(leaf) * factor, stage.decode_one(wire, known, None))

    def _public(self, message: Tree, step: int) -> Tree:
        stage = self.compress or Stage()
        return stage.public(Rng(int(message["key"])).child("public", int(message["round"]), step))
