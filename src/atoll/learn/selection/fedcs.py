"""FedCS: clients that are expected to answer in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.checks import require_count, require_positive

from .base import Candidates
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FedCS"]


@dataclass(frozen=True)
class FedCS(Uniform):
    """Draws ``count`` clients at random and invites those that are expected to answer by a deadline.

    Without ``upload`` a client stays if its forecast is at most the deadline (W. Wu, "Towards Efficient Horizontal Federated Learning", 2021,
    section 3.5.1). With it, uploads share a channel and clients are admitted greedily, as in T. Nishio and R. Yonetani, "Client Selection for
    Federated Learning with Heterogeneous Resources in Mobile Edge", ICC 2019, Algorithm 3: with ``Theta`` the time at which the channel is free,
    the next client is the one that lengthens the round least,

        ``Theta' = Theta + upload + max(0, forecast_k - upload - Theta) = max(Theta + upload, forecast_k)``,

    and is admitted if ``Theta' + overhead <= deadline``. The paper's inequality is strict, and it adds the distribution time separately; here it
    is part of each forecast.

    Attributes:
        count: candidates drawn per round, as in ``Uniform``; fewer are invited. A round without a fast enough client fails.
        deadline: the deadline in seconds.
        upload: seconds of one upload that has the channel to itself; ``None`` lets all clients upload at once.
        slots: uploads at the same time, 1 in the paper.
        overhead: seconds that the server needs to select and aggregate.
    """

    citation: ClassVar[str] = (
        "Nishio and Yonetani 2019, Client Selection for FL with Heterogeneous Resources in Mobile Edge"
    )
    deadline: float = 60.0
    upload: float | None = None
    slots: int = 1
    overhead: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("FedCS", deadline=self.deadline)
        require_count("FedCS", slots=self.slots)
        if self.upload is not None:
            require_positive("FedCS", upload=self.upload)
        if not 0 <= self.overhead < self.deadline:
            raise ConfigError(
                f"overhead={self.overhead} of deadline={self.deadline} s",
                where="FedCS",
                remedy="use seconds from 0 to below the deadline",
            )

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Draw, then keep or admit clients that will be in time.

        Raises:
            ConfigError: there are no forecasts of how long clients take.
        """
        drawn = super().invite(candidates, count, state)
        forecast = candidates.seconds()
        if forecast is None:
            raise ConfigError(
                "it is unknown how long clients take",
                where="FedCS",
                remedy="simulate with devices that can forecast (atoll.simulate(..., devices=...)), or use Uniform",
            )
        seconds = np.asarray(forecast, dtype=np.float64)[drawn]
        if self.upload is None:
            return np.asarray(drawn[seconds + self.overhead <= self.deadline])
        return np.asarray(drawn[self._admit_clients(seconds, self.upload)])

    def _admit_clients(self, seconds: NDArray[np.float64], upload: float) -> list[int]:
        """Return the greedy choice: indices of the admitted clients, in order of admission."""
        free, left, admitted = np.zeros(self.slots), list(range(len(seconds))), []
        while left:
            ends = np.maximum(free.min() + upload, seconds[left])
            best = int(np.argmin(ends))
            if ends[best] + self.overhead <= self.deadline:
                free[int(np.argmin(free))] = ends[best]
                admitted.append(left[best])
            del left[best]
        return admitted
