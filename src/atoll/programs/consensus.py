"""Consensus by ADMM with tasks of their own shape: asynchronous with a server, and on graphs without one.

Methods with a server that combines one sum are algorithms of a ``Training`` in ``atoll.learn.algorithms``: LFedADMM, FedADMM, CEADMM, FastADMM,
AndersonADMM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, DataError, QuorumError
from atoll.core.federation.federation import Federation
from atoll.core.federation.flight import Handle
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from atoll.data.missing import known_rows
from atoll.learn.card import Card
from atoll.learn.checks import require_choice, require_count, require_positive
from atoll.learn.pacing.barrier import overdue
from atoll.learn.topology.graphs import Graph, Ring

__all__ = ["AsyncADMM", "DADMM", "DLM", "check_loss", "gradient", "local_data", "solve", "value"]


Array = np.ndarray[Any, np.dtype[Any]]

LOSSES = ("least_squares", "quadratic", "logistic")
"""``1/2 ||A w - y||^2`` with rows ``A = x``; ``1/2 w^T H w - b^T w`` with ``H = x``, ``b = y``; ``sum log(1 + exp(-y x^T w))``, ``y`` -1 or 1."""


def check_loss(name: str, where: str) -> None:
    """Refuse an unknown loss.

    Raises:
        ConfigError: names the nearest known loss.
    """
    require_choice(where, "loss", name, LOSSES)


def local_data(island: Any, dim: int, loss: str) -> tuple[Array, Array]:
    """Return a party's ``x`` and ``y``.

    Raises:
        DataError: ``x`` has another number of columns, a quadratic is not a square matrix, or labels of a logistic loss are not -1 and 1.
    """
    data = known_rows(island.data, f"the loss {loss!r}")
    x, y = np.asarray(data.x, np.float64), np.asarray(data.y, np.float64)
    wanted = (dim, dim) if loss == "quadratic" else (len(y), dim)
    if x.shape != wanted:
        raise DataError(f"{island.name} has x of shape {x.shape}", where=loss, remedy=f"give it {wanted}")
    if loss == "logistic" and not np.isin(y, (-1.0, 1.0)).all():
        raise DataError(
            f"{island.name} has labels that are not -1 or 1", where=loss, remedy="map the classes to -1 and 1"
        )
    return x, y


def value(loss: str, x: Array, y: Array, w: Array) -> float:
    """Return the loss."""
    if loss == "least_squares":
        return 0.5 * float(((x @ w - y) ** 2).sum())
    if loss == "quadratic":
        return float(w @ (0.5 * x @ w - y))
    return float(np.logaddexp(0.0, -y * (x @ w)).sum())


def gradient(loss: str, x: Array, y: Array, w: Array) -> Array:
    """Return its gradient, ``(dim,)``."""
    if loss == "least_squares":
        return np.asarray(x.T @ (x @ w - y))
    if loss == "quadratic":
        return np.asarray(x @ w - y)
    return np.asarray(-x.T @ (y / (1.0 + np.exp(np.clip(y * (x @ w), -500.0, 500.0)))))


def solve(loss: str, x: Array, y: Array, linear: Array, rho: float, center: Array) -> Array:
    """Return ``argmin_w f(w) + <linear, w> + (rho/2) ||w - center||^2``, exactly: by a linear system, or Newton's method with halved steps until it converges.

    Args:
        loss: one of ``LOSSES``.
        x: rows, or the matrix.
        y: targets.
        linear: ``(dim,)``.
        rho: weight of the proximal term, positive.
        center: ``(dim,)``.
    """
    eye = np.eye(len(center))
    if loss == "least_squares":
        return np.linalg.solve(x.T @ x + rho * eye, x.T @ y - linear + rho * center)
    if loss == "quadratic":
        return np.linalg.solve(x + rho * eye, y - linear + rho * center)
    w = center

    def total(at: Array) -> float:
        return value(loss, x, y, at) + float(linear @ at) + 0.5 * rho * float((at - center) @ (at - center))

    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(np.clip(-(x @ w), -500.0, 500.0)))
        slope = gradient(loss, x, y, w) + linear + rho * (w - center)
        step = np.linalg.solve((x.T * (p * (1.0 - p))) @ x + rho * eye, slope)
        size = 1.0
        while size > 1e-4 and total(w - size * step) > total(w) - 1e-4 * size * float(slope @ step):
            size *= 0.5
        w = w - size * step
        if float(np.linalg.norm(step)) <= 1e-13 * (1.0 + float(np.linalg.norm(w))):
            break
    return w


# ---------------------------------------------------------------- AsyncADMM


@task
def worker_step(island: Any, message: Tree) -> dict[str, Aggregate]:
    """Compute ``x = argmin f(x) + <l, x> + (rho/2) ||x - z||^2``, ``l += rho (x - z)``; reply with the change of ``x + l / rho``."""
    z, rho = message["z"], message["rho"]
    x, y = local_data(island, len(z), message["loss"])
    state = island.state or {"x": np.zeros(len(z)), "dual": np.zeros(len(z))}
    fresh = solve(message["loss"], x, y, state["dual"], rho, z)
    dual = state["dual"] + rho * (fresh - z)
    island.state = {"x": fresh, "dual": dual}
    return {"change": Sum(fresh - state["x"] + (dual - state["dual"]) / rho)}


@dataclass(frozen=True, kw_only=True)
class AsyncADMM:
    """Consensus ADMM with a partial barrier.

    The server updates ``z = mean(x_i + l_i / rho)`` when at least ``min_arrivals`` workers have reported since the last update and no worker's last report is
    ``max_age`` updates old or older; the last reports of the others stay in the mean. Only reporters receive the new ``z``.

    ``PartialBarrier`` is the same pacing for trainings: with ``CEADMM(solver="exact")`` on quadratics, it gives the same ``z``.

    It is a program in the clock's time: ``atoll.simulate(AsyncADMM(dim=15).program, islands)`` returns ``z``. With ``min_arrivals`` = all, it is synchronous.
    If the run has a folder, it writes a checkpoint after every update; work under way continues from there.

    Attributes:
        dim: length of the model.
        rho: the penalty, positive.
        min_arrivals: ``S_min``, at least 1.
        max_age: ``tau``, at least 1.
        updates: number of updates of ``z``.
        loss: one of ``atoll.programs.consensus.LOSSES``.
    """

    dim: int
    rho: float = 1.0
    min_arrivals: int = 1
    max_age: int = 10
    updates: int = 600
    loss: str = "quadratic"
    citation: ClassVar[str] = "Zhang, Kwok. Asynchronous Distributed ADMM for Consensus Optimization. ICML 2014."
    card: ClassVar[Card] = Card(
        family="admm",
        unbiased=True,
        down="d + 1",
        up="d",
        state="2 d",
        note="A program in virtual or real time. A round is one server update that includes the client.",
    )

    def __post_init__(self) -> None:
        require_positive("AsyncADMM", rho=self.rho)
        require_count(
            "AsyncADMM", dim=self.dim, min_arrivals=self.min_arrivals, max_age=self.max_age, updates=self.updates
        )
        check_loss(self.loss, "AsyncADMM")

    async def program(self, fed: Federation) -> Array:
        """Run the program.

        Raises:
            CompositionError: ``min_arrivals`` exceeds the number of workers.
            QuorumError: awaited workers will never report.
        """
        n = len(fed.parties)
        if self.min_arrivals > n:
            raise CompositionError(
                f"min_arrivals={self.min_arrivals} of {n} workers", where="AsyncADMM", remedy=f"use at most {n}"
            )
        place = {int(position): i for i, position in enumerate(fed.parties.positions)}
        nobody = np.zeros(n, dtype=np.int64)
        state = await fed.restore({"update": 0, "total": np.zeros(self.dim), "age": nobody, "free": np.arange(n)})
        total, age, free = (np.array(state[name]) for name in ("total", "age", "free"))
        z = total / n
        for number in range(state["update"] + 1, self.updates + 1):
            message = {"z": z, "rho": self.rho, "loss": self.loss}
            await fed.send(fed.parties[free], worker_step, message, version=number, at=number)
            handles = await self._reports(fed, age, place)
            free = np.array(sorted(place[handle.party.position] for handle in handles))
            total = total + (await fed.combine(handles))["change"]
            z = total / n
            age += 1
            age[free] = 0
            fed.record({"update": number, "time": fed.clock.now(), "reports": len(free), "oldest": int(age.max())})
            if fed.durable:
                await fed.checkpoint({"update": number, "total": total, "age": age, "free": free})
        return z

    async def _reports(self, fed: Federation, age: Array, place: dict[int, int]) -> list[Handle]:
        handles: list[Handle] = []
        waiting = set(np.flatnonzero(overdue(age, self.max_age)).tolist())
        while len(handles) < self.min_arrivals or waiting:
            arrived = await fed.arrivals(1)
            if not len(arrived):
                raise QuorumError(
                    f"{len(handles)} of {self.min_arrivals} workers reported, {len(waiting)} reports are too old, and nothing is under way",
                    where="AsyncADMM",
                    remedy="lower min_arrivals, raise max_age, or leave out workers that fail",
                )
            handles += arrived.handles()
            waiting -= {place[int(position)] for position in arrived.positions}
        return handles


# ---------------------------------------------------------------- ADMM on a graph, without a server


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
        loss: one of ``atoll.programs.consensus.LOSSES``.
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
