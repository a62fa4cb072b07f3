"""FedBuff: the server steps when a buffer of updates is full (Nguyen et al. 2022)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.capability import DROPPABLE, FITTED, SINGLE_REPLIES, Capability, Need
from atoll.core.errors import CompositionError, QuorumError
from atoll.core.requests.party import Parties

from ..capabilities import DELTA
from ..checks import require_choice, require_count, require_positive
from .asynchronous import Asynchronous, InFlight, require_at_work
from .staleness import PolynomialStaleness, Staleness

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Flight, Handle
    from atoll.core.requests.results import Combined
    from atoll.rounds.loop import Course

    from ..context import Context
    from .asynchronous import RoundLog

__all__ = ["Buffered", "FedBuff"]


class Buffered(InFlight):
    """One server update per round, from the replies that ``gather`` collects: one sum per request, so that a secure reducer can hide single replies."""

    factor: float = 1.0
    """Factor of the whole update: the server's learning rate."""

    async def gather(self, fed: Federation, state: Tree, log: RoundLog) -> tuple[list[Handle], Tree]:
        """Wait until a round has its replies; return them, still held, and the state."""
        raise NotImplementedError

    def weight(self, staleness: int) -> float:
        """Return the weight of an update with this staleness."""
        del staleness
        return 1.0

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Fill, gather, fold."""
        state = await self.fill(fed, state, log)
        taken, state = await self.gather(fed, state, log)
        parts = []
        for flight, handles in groups_of(taken):
            found = await self._combine_buffer(fed, state, flight, handles, log)
            if found is None:
                continue
            log.used(handles, found, state["version"])  # also if no reply counts: the row says why
            if found.n:
                parts.append((found, self.factor * self.weight(state["version"] - flight.version)))
        state = self.released(fed, state, taken)
        if not parts:
            return state
        whole = self.replace_empty(fed, together(parts, fed), log)
        state = self.apply_replies(fed, state, whole)
        return self.fit_uplink(fed, state, parts[-1][0]) if whole.n else state

    async def _combine_buffer(
        self, fed: Federation, state: Tree, flight: Flight, handles: Sequence[Handle], log: RoundLog
    ) -> Combined | None:
        try:
            return await fed.combine(handles, uplink=self.chain(state, flight), reducer=self.reducer)
        except QuorumError:
            if self.reducer is None:
                raise
            log.late += len(handles)  # the protocol lost too many replies
            log.wasted += len(handles)
            return None


def groups_of(handles: Sequence[Handle]) -> list[tuple[Flight, list[Handle]]]:
    """Return arrivals by the request that they answer, earlier requests first."""
    flights = sorted(dict.fromkeys(h.flight for h in handles), key=lambda flight: flight.request.turn)
    return [(flight, [h for h in handles if h.flight is flight]) for flight in flights]


def together(parts: Sequence[tuple[Combined, float]], fed: Federation) -> Combined:
    """Return sums of several groups as one: ``update = sum_g c_g W_g u_g / sum_g W_g``; other means by weight, sums added, single replies concatenated.

    Args:
        parts: the groups' sums, each with the factor ``c_g`` of its updates.
        fed: the federation, for the names of parties.

    Raises:
        CompositionError: a reply is a vote; its results cannot be added up.
    """
    first, value, weight = parts[0][0], dict[str, Any](), dict[str, float]()
    for name in first.value:
        kind = first.kinds.get(name, "sum")
        weight[name] = sum(part.weight[name] for part, _ in parts)
        found = [part.value[name] for part, _ in parts]
        if kind == "mean":
            shares = [part.weight[name] / weight[name] if weight[name] else 0.0 for part, _ in parts]
            # The factor discounts how far old work moves the model; it changes neither metrics nor how many examples count.
            factors = [c if name == "update" else 1.0 for _, c in parts]
            found = [T.scale(v, share * c) for v, share, c in zip(found, shares, factors, strict=True)]
        elif kind == "vote" and len(parts) > 1:
            raise CompositionError(
                f"{name!r} is a majority vote, and votes about several versions of the model cannot be added up",
                where="Training.pacing",
                remedy="use an algorithm whose replies are means or sums, or Synchronous()",
            )
        whole = found[0]
        for other in found[1:]:
            whole = whole + other if kind == "parts" else T.add(whole, other)
        value[name] = whole
    counts = Counter[str]()
    for part, _ in parts:
        counts.update(part.counts)
    senders = Parties(fed.world.roster, np.concatenate([part.senders.positions for part, _ in parts]))
    return replace(
        first, value=value, weight=weight, n=sum(part.n for part, _ in parts), senders=senders, counts=dict(counts)
    )


# ---------------------------------------------------------------- FedBuff


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
            await self.hold_arrivals(fed)
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
                await self.drop_replies(fed, state, group, log)
                state = self.released(fed, state, group)
        return state
