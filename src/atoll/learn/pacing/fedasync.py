"""FedAsync: the server mixes every arrival into the model at once (Xie, Koyejo, Gupta 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.core.algebra import tree as T
from atoll.core.capability import DROPPABLE, SINGLE_REPLIES, Need
from atoll.core.errors import ConfigError

from ..capabilities import DELTA
from ..checks import require_count
from .asynchronous import Asynchronous, InFlight
from .staleness import ConstantStaleness, Staleness

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Handle
    from atoll.core.requests.results import Combined
    from atoll.rounds.loop import Course

    from ..context import Context
    from .asynchronous import RoundLog

__all__ = ["FedAsync"]


@dataclass(frozen=True, kw_only=True)
class FedAsync(Asynchronous):
    """``w <- (1 - alpha_d) w + alpha_d w_k`` at every arrival, with ``alpha_d = alpha s(d)`` and ``d`` the server updates since client k's base.

    ``w_k`` is the model that the client received plus its update. The algorithm folds ``alpha_d (w_k - w)`` as the reply of one client. A round
    is ``arrivals`` arrivals. When it starts, the selection rule invites idle clients until as many as the cohort's size are working. So with
    ``arrivals=1``, another client starts as soon as one has answered: this is the instant operator of Wu 2021 (section 2.3, Eq. 2.48). With
    more, the server invites several clients from time to time. One block computes the work of one request, so more arrivals per round are also faster.

    FedAsync's proximal term at the clients is part of the algorithm: combine with ``FedProx``. If the algorithm plans a round of the server only,
    the server invites no client and takes no arrival.

    Xie, Koyejo, Gupta 2019, "Asynchronous Federated Optimization", arXiv:1903.03934.

    Attributes:
        alpha: mixing weight of a fresh reply, in [0, 1]; 1 replaces the model, 0 leaves it.
        staleness: how the weight falls with ``d``.
        arrivals: replies per round.
        max_staleness: replies with a larger ``d`` are dropped; ``None`` takes all. Not for algorithms with client state, because the server's state would miss the reply.
    """

    alpha: float = 0.6
    staleness: Staleness = field(default_factory=ConstantStaleness)
    arrivals: int = 1
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha={self.alpha}", where="FedAsync", remedy="use a mixing weight in [0, 1]")
        require_count("FedAsync", arrivals=self.arrivals)
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError(
                f"max_staleness={self.max_staleness}", where="FedAsync", remedy="use 0 updates or more, or None"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, single replies that can be weighted and, with a limit, dropped."""
        drops = Need(DROPPABLE, "drops replies that are too stale", "max_staleness=None")
        return (
            *super().needs,
            Need(SINGLE_REPLIES, "rebuilds single models", "Synchronous() or FedBuff()"),
            Need(DELTA, "weights each reply by its staleness"),
            *(() if self.max_staleness is None else (drops,)),
        )

    def course(self, context: Context) -> Course:
        """Return rounds of a number of arrivals."""
        return _Mixing(self, context)


class _Mixing(InFlight):
    """The rounds of ``FedAsync``."""

    def __init__(self, pacing: FedAsync, context: Context) -> None:
        super().__init__(pacing, context)
        self.pacing = pacing

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Invite clients, then mix ``arrivals`` replies."""
        state = await self.fill(fed, state, log)
        taken = 0
        while taken < self.pacing.arrivals:
            await self.hold_arrivals(fed)
            if not self.held:
                state = await self.await_more(fed, state, log)
                continue
            handle = self.held[0]
            state = self.released(fed, state, [handle])
            limit = self.pacing.max_staleness
            if limit is not None and state["version"] - handle.version > limit:
                await self.drop_replies(fed, state, [handle], log)
                continue
            combined = await fed.combine([handle], uplink=self.context.uplink(self.phase))
            log.used([handle], combined, state["version"])
            combined = self.replace_empty(fed, combined, log)
            state = self.apply_replies(fed, state, self._mix_reply(state, handle, combined))
            taken += 1
        return state

    def _mix_reply(self, state: Tree, handle: Handle, combined: Combined) -> Combined:
        """Return the reply as the change of the model, ``alpha_d (base + update - w)``; running statistics likewise."""
        if combined.n == 0:
            return combined
        alpha = self.pacing.alpha * self.pacing.staleness.weight(state["version"] - handle.version)
        base, now = handle.flight.request.message["broadcast"]["params"], state["server"]["params"]
        update = T.scale(T.sub(T.add(base, combined.value["update"]), now), alpha)
        value = {**combined.value, "update": update}
        if "buffers" in value:
            held = {name: state["buffers"][name] for name in value["buffers"]}
            value["buffers"] = T.add(T.scale(held, 1.0 - alpha), T.scale(value["buffers"], alpha))
        return replace(combined, value=value)
