"""AsyncADMM: consensus ADMM in which the server continues when some workers have reported and none is too old."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, QuorumError
from atoll.core.federation.federation import Federation
from atoll.core.federation.flight import Handle
from atoll.core.requests.task import task
from atoll.learn.card import Card

from ..checks import require_count, require_positive
from .losses import check_loss, local_data, solve

__all__ = ["AsyncADMM", "overdue", "worker_step"]

Array = np.ndarray[Any, np.dtype[Any]]


def overdue(age: Array, most: int) -> Array:
    """Return the workers that the next update must wait for, or their last reports would be ``most`` updates old after it.

    Args:
        age: updates since each worker's last report.
        most: ``tau``.
    """
    return np.asarray(age >= most - 1)


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
        loss: one of ``atoll.learn.admm.losses.LOSSES``.
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
