"""The batched engine: a cohort in large array operations, on all cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.cohort import Cohort
from atoll.core.party import Parties
from atoll.core.request import Folded, Reply, Request
from atoll.core.wire import unpack_folded

from .inline import converse_here
from .processes import Processes
from .remote import Channel, merge_folded, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.session import Switch
    from atoll.core.world import World

__all__ = ["Batched"]


WORTH_A_PROCESS = 1e-3  # seconds of work a cohort; below, a message to a worker costs more than it saves


class Batched(Processes):
    """Uses a task's ``many``: blocks of clients that fit the cache, spread over worker processes where the work is worth it.

    Tasks without ``many``, and work too small to be worth a process, run in this process one by one.
    """

    name: ClassVar[str] = "batched"
    vectorised: ClassVar[bool] = True

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(workers)
        self._plans: dict[str, int] = {}

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Single replies: one by one, here."""
        return await self.host.run(request, positions)

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        """Sums: in blocks, here or at the workers."""
        if request.task.many is None or len(positions) == 0:
            return await self.host.fold(request, positions)
        if request.task.name not in self._plans:
            self._plans[request.task.name] = self._plan(request, positions)
        workers = self._plans[request.task.name]
        if workers == 1 or len(positions) < 2 * workers:
            return await self.host.fold(request, positions)
        return await self._fold_together(request, positions)

    async def _fold_together(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        """Each worker adds up its part, and this process the first: one message less, and no idle core."""
        channels = await self.channels(request)
        mine, *theirs = spread(positions, len(channels) + 1)
        answers = await self._post(channels, "fold", request, theirs)
        first = await self.host.executor.fold(request, mine, self.host.states(request), None, self.host.spend)
        with self._busy():
            frames = await self._collect(answers)
        parts = [first, *(unpack_folded(frame["folded"]) for frame in frames)]
        return self.host.absorb_fold(request, merge_folded(parts, positions))

    async def connect(self, world: World, workers: int) -> list[Channel]:
        """Start the workers beside this process."""
        return await super().connect(world, workers - 1)

    def _plan(self, request: Request, positions: NDArray[np.int64]) -> int:
        """Decide once per task how it runs: repeat what the run recorded, or tune and record it.

        Tuning comes before the workers are started, so that they inherit what it compiled.
        """
        tuning = request.task.tuning
        recorded = self.choices.get("tasks", {}).get(request.task.name)
        if tuning is None:
            return 1
        if recorded is not None:
            tuning.recall(recorded["tuning"])
        executor = self.host.executor
        part = positions[: -(-len(positions) // self.choices["workers"])]
        states = self.host.states(request)
        cohort = Cohort(Parties(executor.roster, part), executor.keys(request, part), executor.population, states)
        seconds = tuning.prepare(cohort, request.message) * len(positions) / max(1, len(part))
        workers = self.choices["workers"] if seconds > WORTH_A_PROCESS else 1
        if recorded is not None:
            workers = int(recorded["workers"])
        tasks = self.choices.get("tasks", {})
        self.choices["tasks"] = {**tasks, request.task.name: {"workers": workers, "tuning": tuning.choices}}
        self.remember()
        return workers

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, tuple[Any, float]]:
        """Conversations: here."""
        return await converse_here(self.host, roles, switch, start)
