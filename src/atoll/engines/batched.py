"""The batched engine: a cohort in large array operations, on all cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.request import Folded, Reply, Request

from .inline import converse_here
from .processes import Processes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.session import Switch

__all__ = ["Batched"]


class Batched(Processes):
    """Uses a task's ``many``: blocks of clients that fit the cache, spread over worker processes where the work is worth it.

    Tasks without ``many``, and work too small to be worth a process, run in this process one by one.
    """

    name: ClassVar[str] = "batched"
    vectorised: ClassVar[bool] = True

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Single replies: one by one, here."""
        if self._alone(request):
            return await self.host.run(request, positions)
        return await super().run(request, positions)

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        """Sums: in blocks, here or at the workers."""
        if self._alone(request):
            return await self.host.fold(request, positions)
        return await super().fold(request, positions)

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, tuple[Any, float]]:
        """Conversations: here."""
        return await converse_here(self.host, roles, switch, start)

    def _alone(self, request: Request) -> bool:
        return self.choices["workers"] == 1 or request.task.many is None or not request.task.heavy
