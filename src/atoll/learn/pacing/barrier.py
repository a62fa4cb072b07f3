"""A partial barrier with bounded delay: the pace of asynchronous distributed ADMM (Zhang and Kwok 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.capability import SINGLE_REPLIES, STEPS, Need

from ..checks import require_count
from ..selection.base import places_of
from .asynchronous import Asynchronous, require_at_work
from .fedbuff import Buffered

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Handle
    from atoll.rounds.loop import Course

    from ..context import Context
    from .asynchronous import RoundLog

__all__ = ["PartialBarrier", "overdue"]


def overdue(age: NDArray[Any], most: int) -> NDArray[np.bool_]:
    """Return the workers that the next update must wait for, or their last reports would be ``most`` updates old after it.

    Args:
        age: updates since each worker's last report.
        most: ``tau``.
    """
    return np.asarray(age >= most - 1)


@dataclass(frozen=True, kw_only=True)
class PartialBarrier(Asynchronous):
    """The server updates once it has ``replies`` replies, unless a client still works on a model that would then be ``max_delay`` updates old.

    So every reply is folded at most ``max_delay - 1`` updates after its base. With ``max_delay=1``, or ``replies`` set to all clients, it is synchronous.
    A client that has replied receives the new model. Replies count in full, however stale. That is sound if they are changes of what a client sent
    before (the consensus ADMM methods ``CEADMM`` and ``FedADMM``, whose server then always has ``z = (1/N) sum_k u_k`` of the newest ``u_k``). For other
    algorithms, it is asynchronous SGD with a bounded delay.

    ``atoll.programs.AsyncADMM`` is the same pacing as a program, for losses whose subproblem has an exact solution. On quadratics with
    ``CEADMM(solver="exact")`` and ``Everyone()``, both give the same iterates.

    A crash that no link has noticed delays the server like a slow client, because the server cannot tell them apart.

    Zhang, Kwok 2014, "Asynchronous Distributed ADMM for Consensus Optimization", ICML.

    Attributes:
        replies: ``A`` (``S_min`` in the paper), at least 1.
        max_delay: ``tau``, at least 1.
    """

    replies: int = 1
    max_delay: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("PartialBarrier", replies=self.replies, max_delay=self.max_delay)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, a fold that continues from its last state, and single replies."""
        alone = "may have one reply of a version in a round, which the sum would reveal"
        return (
            *super().needs,
            Need(STEPS, "folds the replies of some clients at a time", "Synchronous()"),
            Need(SINGLE_REPLIES, alone, "FedBuff(group=...) or Synchronous()"),
        )

    def check(self, context: Context) -> None:
        """Refuse more replies than working clients."""
        super().check(context)
        require_at_work(self, f"replies={self.replies}", self.replies, context.cohort)

    def course(self, context: Context) -> Course:
        """Return rounds of one update."""
        return _Bounded(self, context)


class _Bounded(Buffered):
    """The rounds of ``PartialBarrier``."""

    def __init__(self, pacing: PartialBarrier, context: Context) -> None:
        super().__init__(pacing, context)
        self.pacing = pacing

    async def gather(self, fed: Federation, state: Tree, log: RoundLog) -> tuple[list[Handle], Tree]:
        """Return all held replies once there are enough and no client is overdue."""
        while True:
            await self.hold_arrivals(fed)
            if len(self.held) >= self.pacing.replies and not self._waits(fed, state):
                return list(self.held), state
            state = await self.await_more(fed, state, log)

    def _waits(self, fed: Federation, state: Tree) -> bool:
        working = state["until"] > fed.clock.now()
        working[places_of(fed.parties.positions, self.held.positions)] = False
        return bool(overdue(state["version"] - state["base"], self.pacing.max_delay)[working].any())
