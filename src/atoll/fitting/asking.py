"""How the program of `Fit` asks its parties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError

from .contacts import summed_numbers

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task

    from .job import Fit

__all__ = ["FitRequests"]


class FitRequests:
    """How a program asks for sums: under any reducer, exactly where nobody sees single replies."""

    def __init__(self, fed: Federation, job: Fit) -> None:
        self.fed, self.job = fed, job
        self.words = job.reducer.secure

    @property
    def quorum(self) -> int:
        """The smallest number of parties."""
        return len(self.fed.parties) if self.job.quorum is None else self.job.quorum

    async def sums(self, task: Task, message: Mapping[str, Any], at: str) -> dict[str, NDArray[np.float64]]:
        """Sums over all parties."""
        asked = {**message, "least": self.job.least_rows, "words": self.words}
        found = await self.fed.sum(self.fed.parties, task, asked, reducer=self.job.reducer, quorum=self.quorum, at=at)
        self.parties = found.n
        return summed_numbers(found.value)

    async def singly(self, task: Task, message: Mapping[str, Any]) -> list[Any]:
        """The reply of each party."""
        if self.words:
            raise CompositionError(
                f"{type(self.job.model).__name__} asks for single replies here, which {type(self.job.reducer).__name__} does not show",
                where="Fit",
                remedy="choose the setting of the method that needs sums alone, or leave the reducer out",
            )
        asked = {**message, "least": self.job.least_rows, "words": False}
        found = await self.fed.ask_all(self.fed.parties, task, asked, quorum=self.quorum)
        self.parties = len(found.senders)
        return list(found.values)
