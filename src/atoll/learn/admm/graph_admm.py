"""ADMM on a graph, without a server: DADMM with exact local solutions, DLM with one gradient step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.federation.federation import Federation
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from atoll.learn.card import Card
from atoll.learn.topology.graphs import Graph, Ring

from ..checks import require_count, require_positive
from .losses import check_loss, gradient, local_data, solve

__all__ = ["DADMM", "DLM", "Agreed", "meet", "node_step"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Agreed:
    """The result.

    Attributes:
        models: the nodes' models, in the order of the federation, ``(nodes, dim)``.
        spread: the largest distance of a node's model from the mean.
    """

    models: Array
    spread: float


@task
def meet(island: Any, message: Tree) -> Tree:
    """Store a node's neighbours, and start at zero."""
    dim = int(message["dim"])
    island.state = {"neighbours": list(message["neighbours"]), "x": np.zeros(dim), "dual": np.zeros(dim)}
    return {}


@task
def node_step(island: Any, message: Tree) -> Tree:
    """Update the multiplier from the received models, then the model, and post it to the neighbours; in the last step only the multiplier."""
    state, c = island.state, message["c"]
    x, dual, names = state["x"], state["dual"], state["neighbours"]
    others = (
        [np.asarray(island.inbox[name]["x"]) for name in names] if message["began"] else [np.zeros_like(x)] * len(names)
    )
    apart = sum((x - other for other in others), np.zeros_like(x))
    dual = dual + c * apart
    if message["last"]:
        island.state = {**state, "dual": dual}
        return {"x": x}
    rows, targets = local_data(island, len(x), message["loss"])
    degree = len(names)
    if message["linearised"]:
        slope = gradient(message["loss"], rows, targets, x) + dual + c * apart
        fresh = x - slope / (2.0 * c * degree + message["rho"])
    else:
        # c sum_j ||w - (x + x_j)/2||^2 is c deg ||w - mean||^2 and a constant; the mean of (x + x_j)/2 is x - apart / (2 deg).
        fresh = solve(message["loss"], rows, targets, dual, 2.0 * c * degree, x - apart / (2.0 * degree))
    island.state = {**state, "x": fresh, "dual": dual}
    for name in names:
        island.post(name, {"x": fresh})
    return {}


@dataclass(frozen=True, kw_only=True)
class DADMM:
    """``min sum_i f_i(x)`` over a connected graph: ``x_i = argmin f_i(x) + <a_i, x> + c sum_j ||x - (x_i + x_j)/2||^2``, ``a_i += c sum_j (x_i - x_j)``.

    ``sum_i a_i = 0`` always. It is a program: ``atoll.simulate(DADMM(dim=15).program, islands)``; neighbours exchange models in sealed letters,
    one per round, edge and direction. All nodes take part in every round. If the run has a folder, it writes a checkpoint after every round.

    Attributes:
        dim: length of the model.
        graph: the neighbours of each node.
        c: the penalty, positive.
        loss: one of ``atoll.learn.admm.losses.LOSSES``.
        rounds: number of rounds.
    """

    dim: int
    graph: Graph = field(default_factory=Ring)
    c: float = 0.2
    loss: str = "quadratic"
    rounds: int = 200
    citation: ClassVar[str] = (
        "Shi, Ling, Yuan, Wu, Yin. On the Linear Convergence of the ADMM in Decentralized Consensus Optimization. IEEE TSP 2014."
    )
    card: ClassVar[Card] = Card(
        family="admm",
        unbiased=True,
        everyone=True,
        down="d a neighbour + 2",
        up="d a neighbour",
        state="2 d",
        note="A program on a graph without a server: neighbours send each other models.",
    )

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, c=self.c)
        require_count(type(self).__name__, dim=self.dim, rounds=self.rounds)
        check_loss(self.loss, type(self).__name__)

    def _step(self) -> Tree:
        return {"linearised": False, "rho": 0.0}

    async def program(self, fed: Federation) -> Agreed:
        """Run the program.

        Raises:
            ConfigError: the graph changes over time, or is not connected.
        """
        neighbours, n = self._neighbours(fed), len(fed.parties)
        state = await fed.restore({"round": 0, "mail": {}})
        if state["round"] == 0:
            for party, names in zip(fed.parties, neighbours, strict=True):
                await fed.ask(party, meet, {"neighbours": names, "dim": self.dim}, at=party.name)
        mail, fixed = Mailboxes(state["mail"]), {"c": self.c, "loss": self.loss, **self._step()}
        for number in range(state["round"], self.rounds + 1):
            last = number == self.rounds
            message = {**fixed, "began": number > 0, "last": last}
            found = await fed.exchange(fed.parties, node_step, message, mail=mail, quorum=n, at=number)
            mail = found.mail
            if not last:
                fed.record({"round": number + 1})
                if fed.durable:
                    await fed.checkpoint({"round": number + 1, "mail": mail.sealed()})
        models = np.array([reply["x"] for reply in found.values])
        spread = float(np.linalg.norm(models - models.mean(axis=0), axis=1).max())
        return Agreed(models, spread)

    def _neighbours(self, fed: Federation) -> list[list[str]]:
        names, where = [party.name for party in fed.parties], type(self).__name__
        if self.graph.changes:
            raise ConfigError(f"{self.graph} changes over time", where=f"{where}.graph", remedy="use a fixed graph")
        found: list[list[str]] = [[] for _ in names]
        for i, j in self.graph.edges(len(names), fed.rng.child("graph")).tolist():
            found[i].append(names[j])
            found[j].append(names[i])
        at, seen, todo = {name: i for i, name in enumerate(names)}, {names[0]}, [names[0]]
        while todo:
            new = set(found[at[todo.pop()]]) - seen
            seen |= new
            todo += sorted(new)
        if len(seen) < len(names):
            lost = next(name for name in names if name not in seen)
            raise ConfigError(
                f"no path leads from {names[0]!r} to {lost!r}", where=f"{where}.graph", remedy="use a connected graph"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class DLM(DADMM):
    """DADMM with its local problem linearised: ``x_i -= (grad f_i(x_i) + a_i + c sum_j (x_i - x_j)) / (2 c deg_i + rho)``.

    Attributes:
        rho: curvature added to the step, positive; use about half the smoothness of the losses, or more.
    """

    rho: float = 10.0
    citation: ClassVar[str] = (
        "Ling, Shi, Wu, Ribeiro. DLM: Decentralized Linearized Alternating Direction Method of Multipliers. IEEE TSP 2015."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("DLM", rho=self.rho)

    def _step(self) -> Tree:
        return {"linearised": True, "rho": self.rho}
