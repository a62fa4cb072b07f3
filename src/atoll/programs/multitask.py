"""Related models, one a client: multi-task learning by ADMM in three server cases, and MOCHA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.federation import Federation
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.party import Parties
from atoll.core.requests.task import task
from atoll.learn.card import Card
from atoll.learn.checks import require_choice, require_count, require_positive
from atoll.learn.proximal import svt

from .consensus import check_loss, local_data, solve

__all__ = ["Mocha", "MultiTaskADMM"]


Array = np.ndarray[Any, np.dtype[Any]]


@task
def multitask_step(island: Any, message: Tree) -> dict[str, Aggregate]:
    """Compute ``x = argmin f(x) + <l, x - z> + (rho/2) ||x - z||^2``, ``l += rho (x - z)``; reply with the change of ``rho x + l``."""
    z, rho, loss = message["z"], message["rho"], message["loss"]
    x, y = local_data(island, len(z), loss)
    state = island.state or {"x": np.zeros(len(z)), "dual": np.zeros(len(z))}
    fresh = solve(loss, x, y, state["dual"], rho, z)
    dual = state["dual"] + rho * (fresh - z)
    island.state = {"x": fresh, "dual": dual}
    return {"change": Sum(rho * (fresh - state["x"]) + dual - state["dual"])}


@dataclass(frozen=True, kw_only=True)
class MultiTaskADMM:
    """``min_Z sum_i f_i(z_psi(i)) + R(Z)``, ``Z`` of shape ``(dim, tasks)``: client ``i`` works for task ``psi(i)``; several clients may share a task.

    It is a program: ``(await) MultiTaskADMM(...).program(fed)`` returns ``Z``. With ``S_j`` the sum of ``M_i = rho x_i + l_i`` over the clients of task ``j`` and
    ``n_j`` their number, the server computes ``argmin_Z R(Z) + sum_j (rho n_j / 2) ||z_j||^2 - <S_j, z_j>``:

    * ``R = weight ||Z||_*`` and all ``n_j = n`` (case 1 has ``n = 1``): ``SVT(S / (rho n), weight / (rho n))``;
    * otherwise (case 2) ``inner`` proximal steps of length ``1 / (rho max n_j)``;
    * ``R = weight Tr(Z Z^T)`` (case 3): ``z_j = S_j / (2 weight + rho n_j)``. The paper prints ``1``, which is correct for half that regulariser.

    Each task's clients get a separate request, so the server needs only ``S_j``, and a secure reducer can compute it if ``n_j >= 2``.
    Only the cohort works in a round; the others' ``M_i`` stay unchanged.

    Attributes:
        dim: length of a column.
        tasks: client -> task, by name; tasks are 0 to the largest.
        regulariser: ``"nuclear"`` or ``"ridge"``.
        weight: weight of the regulariser, not negative.
        rho: the penalty, positive.
        loss: one of ``atoll.programs.consensus.LOSSES``.
        inner: number of server steps in case 2.
        rounds: number of rounds.
        cohort: clients per round, drawn from all; ``None`` is all. With a secure reducer, at least two clients of a task take part, or none.
        reducer: the reducer that adds up each task's replies.
    """

    dim: int
    tasks: Mapping[str, int]
    regulariser: str = "nuclear"
    weight: float = 0.5
    rho: float = 1.0
    loss: str = "least_squares"
    inner: int = 10
    rounds: int = 100
    cohort: int | None = None
    reducer: Reducer | None = None
    citation: ClassVar[str] = "Advancements in Federated Learning: Models, Methods, and Privacy (survey), Algorithm 2."
    card: ClassVar[Card] = Card(
        family="admm",
        down="d + 1",
        up="d",
        state="2 d",
        secure=True,
        note="A program: ADMM for multi-task learning. A sum hides single clients if their task has two or more.",
    )

    def __post_init__(self) -> None:
        where = "MultiTaskADMM"
        require_positive(where, rho=self.rho)
        require_count(where, dim=self.dim, inner=self.inner, rounds=self.rounds)
        require_choice(where, "regulariser", self.regulariser, ("nuclear", "ridge"))
        check_loss(self.loss, where)
        if not self.weight >= 0:
            raise ConfigError(f"weight={self.weight}", where=where, remedy="use a weight of 0 or more")
        if self.cohort is not None:
            require_count(where, cohort=self.cohort)
        counts = self.counts()
        if not len(counts) or (counts == 0).any():
            bare = int(np.argmin(counts)) if len(counts) else 0
            raise ConfigError(f"task {bare} has no client", where=f"{where}.tasks", remedy="number tasks 0, 1, ... and give each a client")  # fmt: skip
        if self.reducer is not None and self.reducer.secure and counts.min() < 2:
            raise CompositionError(
                f"task {int(counts.argmin())} has one client, so that the sum would be its message",
                where=f"{where}.reducer",
                remedy="give every task at least two clients, or use the plain reducer",
            )

    def counts(self) -> Array:
        """Return ``n_j``, ``(tasks,)``."""
        found = list(self.tasks.values())
        if found and min(found) < 0:
            raise ConfigError(f"task {min(found)}", where="MultiTaskADMM.tasks", remedy="number tasks 0, 1, ...")
        return np.bincount(np.asarray(found, dtype=np.int64))

    async def program(self, fed: Federation) -> Array:
        """Run the program and return ``Z``, with a checkpoint after every round if the run has a folder.

        Raises:
            ConfigError: the map names an unknown client, or leaves a client out.
        """
        of = self._map(fed)
        counts = self.counts()
        zero = np.zeros((self.dim, len(counts)))
        state = await fed.restore({"Z": zero, "S": zero, "round": 0})
        while state["round"] < self.rounds:
            number = state["round"] + 1
            total = state["S"].copy()
            for j, some in self._cohorts(fed, of, number):
                message = {"z": state["Z"][:, j], "rho": self.rho, "loss": self.loss}
                found = await fed.sum(
                    some, multitask_step, message, reducer=self.reducer, at=(number, j), quorum=len(some)
                )
                total[:, j] += found["change"]
            state = {"Z": self._minimise_shared(state["Z"], total, counts), "S": total, "round": number}
            fed.record({"round": number, "change": float(np.abs(total).max())})
            if fed.durable:
                await fed.checkpoint(state)
        return np.asarray(state["Z"])

    def _map(self, fed: Federation) -> Array:
        names = [party.name for party in fed.parties]
        left, strange = sorted(set(names) - set(self.tasks)), sorted(set(self.tasks) - set(names))
        if left or strange:
            what = f"client {left[0]!r} has no task" if left else f"{strange[0]!r} is not a client"
            raise ConfigError(
                what, where="MultiTaskADMM.tasks", remedy="map every client of the federation, and only those"
            )
        return np.array([self.tasks[name] for name in names])

    def _cohorts(self, fed: Federation, of: Array, number: int) -> list[tuple[int, Parties]]:
        chosen = np.arange(len(of))
        if self.cohort is not None:
            if self.cohort > len(of):
                raise ConfigError(
                    f"cohort={self.cohort} of {len(of)} clients", where="MultiTaskADMM", remedy="use fewer"
                )
            draw = fed.rng.child("cohort", number).generator()
            chosen = np.sort(draw.choice(len(of), self.cohort, replace=False))
        least = 2 if self.reducer is not None and self.reducer.secure else 1
        groups = [(j, chosen[of[chosen] == j]) for j in range(int(of.max()) + 1)]
        return [(j, fed.parties[which]) for j, which in groups if len(which) >= least]

    def _minimise_shared(self, z: Array, total: Array, counts: Array) -> Array:
        if self.regulariser == "ridge":
            return np.asarray(total / (2.0 * self.weight + self.rho * counts))
        most = self.rho * float(counts.max())
        if counts.min() == counts.max():
            return svt(total / most, self.weight / most)
        for _ in range(self.inner):
            z = svt(z - (self.rho * counts * z - total) / most, self.weight / most)
        return z


# ---------------------------------------------------------------- MOCHA (Smith et al. 2017)


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
