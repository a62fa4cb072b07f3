"""FedBuff: the server steps when a buffer of updates is full (Nguyen et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.capability import DROPPABLE, FITTED, SINGLE_REPLIES, Capability, Need

from ..capabilities import DELTA
from ..checks import require_choice, require_count, require_positive
from .staleness import PolynomialStaleness, Staleness
from .versions.asynchronous import Asynchronous, require_at_work
from .versions.buffered import Buffered, groups_of

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Handle
    from atoll.rounds.loop import Course

    from ..context import Context
    from .versions.round_log import RoundLog

__all__ = ["FedBuff"]


@dataclass(frozen=True, kw_only=True)
class FedBuff(Asynchronous):
    """Clients work at their own pace; once ``buffer`` replies arrive, ``w <- w + server_lr sum_k n_k s(d_k) u_k / sum_k n_k``.

    ``u_k`` is the update from the model that client k received, and ``d_k`` the server steps since. The weights ``n_k`` are the algorithm's own (examples in
    FedAvg). With ``aggregation=EqualWeights()``, the step is the paper's, ``(1/K) sum_k s(d_k) u_k``. If the buffer is as large as the number of working
    clients, and devices are equally fast, it is synchronous.

    The server adds up replies by request, so that a secure reducer can hide them: all replies of a request have one weight. ``group`` is then the smallest
    number of replies to add up; replies of a request that can never reach it are dropped. (The paper's own secure aggregation weights at the client.)

    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba 2022, "Federated Learning with Buffered Asynchronous Aggregation", AISTATS.

    Attributes:
        buffer: ``K``, replies per step; a round is one step.
        concurrency: clients that work at the same time; ``None`` is the selection rule's cohort size.
        staleness: ``s``.
        server_lr: learning rate of the step, positive.
        group: smallest number of replies of one request to add up; at least 2 with a secure reducer.
        refill: invite idle clients at every ``"step"``, or also at every ``"arrival"`` as in the paper, which keeps more clients working, in smaller blocks.
    """

    buffer: int = 10
    concurrency: int | None = None
    staleness: Staleness = field(default_factory=PolynomialStaleness)
    server_lr: float = 1.0
    group: int = 1
    refill: str = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("FedBuff", buffer=self.buffer, group=self.group)
        if self.concurrency is not None:
            require_count("FedBuff", concurrency=self.concurrency)
        require_positive("FedBuff", server_lr=self.server_lr)
        require_choice("FedBuff", "refill", self.refill, ("step", "arrival"))

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, replies that can be weighted; without groups single ones, with groups ones that can be dropped."""
        alone = Need(
            SINGLE_REPLIES,
            f"has group={self.group}: it would sum single replies, and so reveal them",
            "group=2 or more",
        )
        drops = Need(DROPPABLE, f"has group={self.group}: it drops replies that never make a group", "group=1")
        return (*super().needs, Need(DELTA, "weights replies by their staleness"), alone if self.group < 2 else drops)

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's, and fitted stages: each version's parameters are kept while clients work on it."""
        return super().offers | {FITTED}

    def check(self, context: Context) -> None:
        """Refuse a buffer that can never be full."""
        super().check(context)
        most = min(len(context.clients), self.concurrency or context.cohort)
        setting = f"buffer={self.buffer} with group={self.group}"
        require_at_work(self, setting, max(self.buffer, self.group), most)

    def course(self, context: Context) -> Course:
        """Return rounds of one step."""
        return _Steps(self, context)


class _Steps(Buffered):
    """The rounds of ``FedBuff``."""

    def __init__(self, pacing: FedBuff, context: Context) -> None:
        super().__init__(pacing, context)
        self.pacing, self.factor = pacing, pacing.server_lr

    def at_work(self, fed: Federation) -> int:
        """Return the concurrency."""
        return self.pacing.concurrency or super().at_work(fed)

    def weight(self, staleness: int) -> float:
        """Return ``s(d)``."""
        return self.pacing.staleness.weight(staleness)

    async def gather(self, fed: Federation, state: Tree, log: RoundLog) -> tuple[list[Handle], Tree]:
        """Return the first replies in whole groups."""
        while True:
            await self.arrived(fed)
            state = await self._given_up(fed, state, log)
            ready = [h for _, group in groups_of(self.held) if len(group) >= self.pacing.group for h in group]
            if len(ready) >= self.pacing.buffer:
                chosen = set(map(id, ready))
                first = [h for h in self.held if id(h) in chosen]
                # Cutting a group could leave too few replies to add up.
                return (first[: self.pacing.buffer] if self.pacing.group == 1 else first), state
            if self.pacing.refill == "arrival":
                state = await self.fill(fed, state, log)
            state = await self.await_more(fed, state, log)

    async def _given_up(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Drop replies of requests that can no longer make a whole group; a crash counts once its link has noticed it."""
        now = fed.clock.now()
        for flight, group in groups_of(self.held):
            hoped = flight.open | (np.isfinite(flight.lost) & (flight.lost > now))
            if len(group) + int(hoped.sum()) < self.pacing.group:
                await self.dropped(fed, state, group, log)
                state = self.released(fed, state, group)
        return state
