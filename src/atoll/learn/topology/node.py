"""A node that is its own server: one round of any algorithm, on its own data, alone.

Its private state is ``{"server", "client", "buffers"}``: the algorithm's state at the server, at the client, and the running statistics of
normalisation layers. A round sends itself its own broadcast, updates, and folds its own reply, ``n = 1``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet
from atoll.core.requests.task import Work

from ..algorithm import Algorithm, Phased, RoundInfo
from ..checks import require_finite
from ..local.reports import BUFFERS, COUNTERS
from ..round.state import broadcast_extras, moved_buffers

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

    from ..learner import Learner

__all__ = ["Node", "Round", "Turn", "fold_reply"]


class Turn:
    """An island as a learner's task sees it in one phase: the same island, with the algorithm's state and the phase's key.

    Args:
        island: the real island.
        state: the algorithm's private state.
        rng: the phase's random stream.
    """

    def __init__(self, island: Island, state: Tree, rng: Rng) -> None:
        self.island = island
        self.state = state
        self.rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self.island, name)


@dataclass(frozen=True)
class Node:
    """Rounds of an algorithm at single nodes.

    Attributes:
        algorithm: the algorithm.
        learner: trains the model.
        population: ``RoundInfo.population``: a single node is a population of one.
    """

    algorithm: Algorithm
    learner: Learner
    population: int = 1

    def work(self, data: Any, args: Any, message: Tree) -> Work:
        """Return the work of the learner's training in every phase."""
        del args, message
        each = [self.learner.train.declared(data, {"phase": phase}) for phase in self.algorithm.phases]
        return Work(sum(w.examples for w in each), sum(w.batches for w in each), sum(w.epochs for w in each))

    def begin(self, key: int) -> Tree:
        """Return the state before the first round: every node draws the same model from the same key, so it need not be sent."""
        params = self.learner.init(Rng(int(key)))
        return {"server": self.algorithm.init(params), "client": None, "buffers": self.learner.buffers()}

    async def round(
        self, island: Island, node: Tree, number: int, label: str | int = "phase"
    ) -> tuple[Tree, dict[str, Aggregate]]:
        """Run one round; return the node's next state, and the metrics of its last reply."""
        turn = Round(self, node, number, float(len(island.data)), island.rng)
        for at in range(len(turn.plan)):
            phase = turn.phase(at)
            if phase is None:
                continue
            view = Turn(island, turn.state["client"], island.rng.child(label, at))
            reply = self.learner.train(view, {"broadcast": turn.make_broadcast(phase), "phase": phase})  # type: ignore[arg-type]
            turn.take(phase, await reply if inspect.isawaitable(reply) else reply, view.state)
        return turn.end(island.name), turn.metrics


class Round:
    """One node's round, phase by phase, except the local updates.

    Args:
        node: the node's functions.
        state: the node's state.
        number: the round.
        examples: the node's number of examples.
        rng: the node's random stream of this request.
    """

    def __init__(self, node: Node, state: Tree, number: int, examples: float, rng: Rng) -> None:
        self.node, self.state, self.number, self.rng = node, state, number, rng
        self.server = state["server"]
        self.info = RoundInfo(number, 1, 1, node.population, examples, rng.child("server"))
        self.plan = node.algorithm.plan(self.server)
        self.metrics: dict[str, Aggregate] = {}

    def phase(self, at: int) -> str | None:
        """Return the phase at this index, if there is one and the server needs it."""
        wanted = at < len(self.plan) and facet(self.node.algorithm, Phased).wanted(self.server, self.plan[at])
        return self.plan[at] if wanted else None

    def make_broadcast(self, phase: str) -> Tree:
        """Return the broadcast that the node sends itself."""
        return {
            **self.node.algorithm.broadcast(self.server, phase),
            **broadcast_extras(self.state, self.node.learner, self.number),
        }

    def take(self, phase: str, reply: dict[str, Aggregate], client: Tree) -> None:
        """Fold the node's own reply, and keep its client state."""
        sums, self.metrics = fold_reply(reply)
        buffers = moved_buffers(self.state["buffers"], sums, 1)
        self.state = {**self.state, "client": client, "buffers": buffers}
        sums = {name: value for name, value in sums.items() if name not in (BUFFERS, COUNTERS)}
        self.server = self.node.algorithm.fold(self.server, sums, self.info, phase)

    def end(self, name: str) -> Tree:
        """Return the node's next state.

        Raises:
            DataError: the model has NaN or infinity.
        """
        server = facet(self.node.algorithm, Phased).advance(self.server, self.info)
        require_finite(server["params"], self.number, whose=name, rate="the learning rate")
        return {**self.state, "server": server}


def fold_reply(reply: dict[str, Aggregate]) -> tuple[dict[str, Any], dict[str, Aggregate]]:
    """Return one reply as sums of one, and its metrics. The mean of one value is the value, to the bit."""
    metrics = {name: aggregate for name, aggregate in reply.items() if aggregate.role == "metric"}
    sums = {
        name: a.value if a.kind == "mean" and a.weight else a.total().result()
        for name, a in reply.items()
        if name not in metrics
    }
    return sums, metrics
