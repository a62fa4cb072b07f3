"""MOCHA (Smith et al. 2017): multi-task learning through the dual, the baseline for the multi-task ADMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.federation.federation import Federation
from atoll.core.requests.task import task
from atoll.learn.card import Card

from ..checks import require_count, require_positive
from .losses import local_data

__all__ = ["Mocha", "mocha_step"]

Array = np.ndarray[Any, np.dtype[Any]]


@task
def mocha_step(island: Any, message: Tree) -> dict[str, Aggregate]:
    """Run coordinate passes over ``1/2 ||a + D||^2 + <D, y> - <X^T D, w> + (curvature/2) ||X^T D||^2`` in ``D``; reply with ``-X^T D``."""
    w, curvature = message["w"], message["curvature"]
    x, y = local_data(island, len(w), "least_squares")
    dual = np.zeros(len(y)) if island.state is None else island.state["dual"].copy()
    moved = np.zeros(len(w))
    scale = 1.0 + curvature * (x * x).sum(axis=1)
    for _ in range(message["passes"]):
        for i in range(len(y)):
            change = -(dual[i] + y[i] - x[i] @ (w - curvature * moved)) / scale[i]
            dual[i] += change
            moved += change * x[i]
    island.state = {"dual": dual}
    return {"v": Sum(-moved)}


@dataclass(frozen=True, kw_only=True)
class Mocha:
    """``min_{W, Omega} sum_t 1/2 ||X_t w_t - y_t||^2 + coupling tr(W Omega^-1 W^T) + ridge ||W||_F^2``: one client per task, all clients in every round.

    With ``K = (2 coupling Omega^-1 + 2 ridge I)^-1`` and ``V = [v_t]``, ``v_t = -X_t^T a_t``, the model is ``W = V K``. A node improves its dual ``a_t`` by
    coordinate passes on its own subproblem and sends the change of ``v_t``. Every ``refresh`` rounds, ``Omega = (W^T W)^(1/2) / tr``.

    Attributes:
        dim: length of a column.
        coupling: weight between the tasks, not negative.
        ridge: weight of the columns, positive.
        passes: passes of coordinate ascent per round, which set the accuracy of the local solution.
        refresh: rounds between updates of ``Omega``; ``None`` leaves it at ``I / tasks``.
        rounds: number of rounds.
    """

    dim: int
    coupling: float = 0.1
    ridge: float = 0.05
    passes: int = 1
    refresh: int | None = 10
    rounds: int = 100
    citation: ClassVar[str] = "Smith, Chiang, Sanjabi, Talwalkar. Federated Multi-Task Learning. NeurIPS 2017."
    card: ClassVar[Card] = Card(
        family="admm",
        everyone=True,
        down="d + 2",
        up="d",
        state="n",
        note="A program: multi-task learning through the dual, with squared loss. It asks each client separately.",
    )

    def __post_init__(self) -> None:
        require_positive("Mocha", ridge=self.ridge)
        require_count("Mocha", dim=self.dim, passes=self.passes, rounds=self.rounds)
        if self.refresh is not None:
            require_count("Mocha", refresh=self.refresh)
        if not self.coupling >= 0:
            raise ConfigError(f"coupling={self.coupling}", where="Mocha", remedy="use a weight of 0 or more")

    async def program(self, fed: Federation) -> Array:
        """Run the program and return ``W``, ``(dim, clients)``."""
        n = len(fed.parties)
        state = await fed.restore({"V": np.zeros((self.dim, n)), "omega": np.eye(n) / n, "round": 0})
        while state["round"] < self.rounds:
            number, kernel = state["round"] + 1, self._kernel(state["omega"])
            # Updates of all nodes add up: the local curvature accounts for the others' simultaneous updates.
            stretch = float((np.abs(kernel).sum(axis=1) / np.diag(kernel)).max())
            model, dual = state["V"] @ kernel, state["V"].copy()
            for t in range(n):
                message = {"w": model[:, t], "curvature": stretch * float(kernel[t, t]), "passes": self.passes}
                dual[:, t] += (await fed.sum(fed.parties[t : t + 1], mocha_step, message, at=(number, t)))["v"]
            omega = state["omega"]
            if self.refresh is not None and number % self.refresh == 0:
                omega = self._omega(dual @ kernel)
            state = {"V": dual, "omega": omega, "round": number}
            fed.record({"round": number, "change": float(np.abs(dual @ kernel - model).max())})
            if fed.durable:
                await fed.checkpoint(state)
        return np.asarray(state["V"] @ self._kernel(state["omega"]))

    def _kernel(self, omega: Array) -> Array:
        n = len(omega)
        # Omega can be singular: (c Omega^-1 + r I)^-1 = Omega (c I + r Omega)^-1 needs no inverse of it.
        return np.asarray(np.linalg.solve(2.0 * self.coupling * np.eye(n) + 2.0 * self.ridge * omega, omega))

    def _omega(self, model: Array) -> Array:
        values, turn = np.linalg.eigh(model.T @ model)
        root = np.sqrt(np.maximum(values, 0.0))
        # A small multiple of the identity keeps every task tied to its own data.
        root = root / max(float(root.sum()), 1e-300) + 1e-6
        return np.asarray((turn * (root / root.sum())) @ turn.T)
