"""Def-KT (Li, Li, Varshney 2021): clients learn from each other's models, and no party averages them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.capability import NO_BUFFERS, RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.requests.task import Task, Work
from atoll.data.missing import known_rows
from atoll.learn.selection.base import places_of

from ..capabilities import CLASS_SCORES, EVERYONE
from ..checks import require_finite
from ..local.update import batch_rows
from .base import Decentralised, refuse
from .graphs import Complete, Graph
from .mixing import Mixer, mixing_matrix
from .nodes import Nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..context import Context

__all__ = ["DefKT", "mutual_slopes"]


@dataclass(frozen=True, kw_only=True)
class DefKT(Decentralised):
    """In each round, ``pairs`` senders train and send their models to as many receivers, which distil.

    A receiver lets the received model and its own teach each other on its own rows, ``L_1 = CE(p_1, y) + KL(p_2 || p_1)`` and
    ``L_2 = CE(p_2, y) + KL(p_1 || p_2)``, both with the algorithm's learning rate, batches and epochs, and keeps the received one. This fuses models
    by their outputs, not their weights, which suits clients with different data. For classification; senders train with the algorithm.

    The global model in the history is the mean of all nodes' models. Nothing makes them agree; ``consensus`` measures how far they differ.

    Attributes:
        graph: a receiver is a neighbour of its sender.
        pairs: senders per round; fewer if no more disjoint pairs are linked.
    """

    graph: Graph = field(default_factory=Complete)
    pairs: int = 1

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise ConfigError(f"pairs={self.pairs}", where="DefKT", remedy="use at least 1")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, all clients, and a model with class scores."""
        scores = "distils class probabilities"
        return (
            *super().needs,
            Need(EVERYONE, "draws pairs from all clients"),
            Need(CLASS_SCORES, scores, "Gossip()"),
            Need(NO_BUFFERS, scores, "Gossip()"),
        )

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        noise = "lets a receiver distil on its own rows without noise and pass its model to others"
        return {**super().lacks, RELEASED_ONLY: noise}

    def check(self, context: Context) -> None:
        """Refuse data without classes."""
        if context.clients.task != "classification":
            why = "distils class probabilities, but these data have no classes"
            refuse(self, why, "model", "use a classifier: a PyTorch module or atoll.models.linear")

    def course(self, context: Context) -> _Pairs:
        """Transfers."""
        return _Pairs(self.pairs, context, Mixer(self.graph, context.clients.names))


class _Pairs(Nodes):
    """Nodes that teach each other in pairs."""

    def __init__(self, pairs: int, context: Context, mixer: Mixer) -> None:
        super().__init__(context, mixer)
        self.pairs = pairs

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The nodes' tasks, and sending and distilling."""
        return (*super().tasks, self.send, self.distil)

    @property
    def send(self) -> Task:
        """Send the model to one node."""
        return Task("atoll.learn.topology:send", self._send)

    @property
    def distil(self) -> Task:
        """Let the received model and the node's own teach each other."""
        return Task("atoll.learn.topology:distil", self._distil, work=self._distilling)

    def _distilling(self, data: Any, args: Any, message: Tree) -> Work:
        """Return the work of the algorithm's last phase, one update."""
        del args, message
        return self.context.learner.train.declared(data, {"phase": self.context.algorithm.phases[-1]})

    def _send(self, island: Island, message: Tree) -> Tree:
        island.post(message["to"][island.name], island.state["server"]["params"])
        return {}

    def _distil(self, island: Island, message: Tree) -> Tree:
        node = self.at_node(island, message)
        data, lr = known_rows(island.data, "DefKT"), self.context.algorithm.lr
        x, y = np.asarray(data.x), np.asarray(data.y).astype(np.int64)
        came, own = dict(next(iter(island.inbox.values()))), node["server"]["params"]
        for rows in batch_rows(self.context.algorithm, len(y), island.rng.key):
            scores = [self.context.learner.scores(model, x[rows]) for model in (came, own)]  # type: ignore[attr-defined]
            slopes = mutual_slopes(scores[0], scores[1], y[rows])
            came, own = (
                T.map(
                    lambda leaf, by: leaf - (lr * by).astype(leaf.dtype), model, self._gradient(model, x[rows], slope)
                )
                for model, slope in zip((came, own), slopes, strict=True)
            )
        require_finite(came, int(message["round"]), whose=island.name, rate="the learning rate")
        island.state = {**node, "server": {**node["server"], "params": came}}
        return {}

    def _gradient(self, params: Tree, x: Any, slope: Any) -> Tree:
        made: Tree = self.context.learner.pullback(params, x, slope)  # type: ignore[attr-defined]
        return {name: made[name] for name in params}

    def match_pairs(self, fed: Federation, number: int) -> list[tuple[int, int]]:
        """Return random disjoint linked pairs: sender, receiver."""
        draw = fed.rng.child("pairs", number).generator()
        n = len(fed.parties)
        links = np.argwhere(np.triu(mixing_matrix(self.mixer.graph, np.arange(n), self.graph_key(fed, number)), 1))
        found: list[tuple[int, int]] = []
        taken: set[int] = set()
        for a, b in draw.permutation(links).tolist():
            if len(found) < self.pairs and not {a, b} & taken:
                found.append((a, b) if draw.random() < 0.5 else (b, a))
                taken |= {a, b}
        return found

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Train, send, distil; a pair takes no part in the round if either node crashes."""
        pairs = sorted(self.match_pairs(fed, number))
        senders = fed.parties[np.array([a for a, _ in pairs], dtype=np.int64)]
        message = {"init": state["init"], "round": number}
        trained = await fed.sum(senders, self.local, message, at=(number, "local"), quorum=0)
        to = {str(self.context.clients.names[a]): str(self.context.clients.names[b]) for a, b in pairs}
        sent = await fed.exchange(trained.senders, self.send, {"to": to}, at=(number, "send"), quorum=0)
        receivers = [fed.world.roster.position(to[name]) for name in sent.senders.names]
        nodes = fed.parties[places_of(fed.parties.positions, np.array(sorted(receivers), dtype=np.int64))]
        done = await fed.exchange(nodes, self.distil, message, mail=sent.mail, at=(number, "distil"), quorum=0)
        row = {name: float(value) for name, value in trained.of("metric").items()}
        return state, {"selected": 2 * len(pairs), "replied": len(sent) + len(done), **row}


def mutual_slopes(first: NDArray[Any], second: NDArray[Any], y: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return derivatives of ``L_1`` and ``L_2`` by the two models' scores, ``(n, classes)`` each; the other model's probabilities are constants.

    ``dL_1/dz_1 = ((p_1 - y) + (p_1 - p_2)) / n``.
    """
    one, two = _softmax(first), _softmax(second)
    hot = np.zeros_like(one)
    hot[np.arange(len(y)), y] = 1.0
    return ((one - hot) + (one - two)) / len(y), ((two - hot) + (two - one)) / len(y)


def _softmax(scores: NDArray[Any]) -> NDArray[Any]:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
