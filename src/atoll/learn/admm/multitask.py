"""Decentralised ADMM for multi-task learning: one column of the model per task, with tasks coupled by a regulariser at the server."""

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

from ..checks import require_choice, require_count, require_positive
from ..proximal import svt
from .losses import check_loss, local_data, solve

__all__ = ["MultiTaskADMM", "multitask_step"]

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
        loss: one of ``atoll.learn.admm.losses.LOSSES``.
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
            state = {"Z": self._minimised(state["Z"], total, counts), "S": total, "round": number}
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

    def _minimised(self, z: Array, total: Array, counts: Array) -> Array:
        if self.regulariser == "ridge":
            return np.asarray(total / (2.0 * self.weight + self.rho * counts))
        most = self.rho * float(counts.max())
        if counts.min() == counts.max():
            return svt(total / most, self.weight / most)
        for _ in range(self.inner):
            z = svt(z - (self.rho * counts * z - total) / most, self.weight / most)
        return z
