"""FedAsync: every arrival is mixed into the model at once (Xie, Koyejo, Gupta 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.core.algebra import tree as T
from atoll.core.capability import DROPPABLE, SINGLE_REPLIES, Need
from atoll.core.errors import ConfigError

from ..capabilities import DELTA
from ..checks import require_count
from .staleness import ConstantStaleness, Staleness
from .versions.asynchronous import Asynchronous
from .versions.in_flight import InFlight

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.results import Combined
    from atoll.core.traffic.flight import Handle
    from atoll.rounds.loop import Course

    from ..context import Context
    from .versions.round_log import RoundLog

__all__ = ["FedAsync"]


@dataclass(frozen=True, kw_only=True)
class FedAsync(Asynchronous):
    """``w <- (1 - alpha_d) w + alpha_d w_k`` at every arrival, with ``alpha_d = alpha s(d)`` and ``d`` the server updates since client k's base.

    ``w_k`` is the model that the client was sent plus its update, and ``alpha_d (w_k - w)`` is what the algorithm folds, as the reply of one client. A round
    is ``arrivals`` of them. When it begins, the selection rule asks so many idle clients that as many as its cohort's size are at work; so with
    ``arrivals=1`` everyone who has answered is followed by somebody at once, which is the instant operator of Wu 2021 (section 2.3, Eq. 2.48), and
    with more a server triggers a subset now and then. What a flight's clients do is computed in one block, so more arrivals a round are also faster.

    FedAsync's proximal term at the clients is the algorithm's affair: compose with ``FedProx``. Where the algorithm plans a round of the server alone,
    nobody is asked and no arrival is taken.

    Xie, Koyejo, Gupta 2019, "Asynchronous Federated Optimization", arXiv:1903.03934.

    Attributes:
        alpha: mixing weight of a fresh reply, in [0, 1]; 1 replaces the model, 0 leaves it.
        staleness: how it falls with ``d``.
        arrivals: replies a round.
        max_staleness: replies with a larger ``d`` are dropped; ``None`` takes all. Not for algorithms whose clients keep state, as the server's would miss it.
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
        """Single replies that may be weighed, and dropped where there is a limit."""
        drops = Need(DROPPABLE, "drops replies that are too stale", "max_staleness=None")
        return (
            *super().needs,
            Need(SINGLE_REPLIES, "rebuilds single models", "Synchronous() or FedBuff()"),
            Need(DELTA, "weighs each reply by its staleness"),
            *(() if self.max_staleness is None else (drops,)),
        )

    def course(self, context: Context) -> Course:
        """Rounds of a number of arrivals."""
        return _Mixing(self, context)


class _Mixing(InFlight):
    """The rounds of ``FedAsync``."""

    def __init__(self, pacing: FedAsync, context: Context) -> None:
        super().__init__(pacing, context)
        self.pacing = pacing

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Trigger, then mix ``arrivals`` replies."""
        state = await self.fill(fed, state, log)
        taken = 0
        while taken < self.pacing.arrivals:
            await self.arrived(fed)
            if not self.held:
                state = await self.await_more(fed, state, log)
                continue
            handle = self.held[0]
            state = self.released(fed, state, [handle])
            limit = self.pacing.max_staleness
            if limit is not None and state["version"] - handle.version > limit:
                await self.dropped(fed, [handle], log)
                continue
            combined = await fed.combine([handle], uplink=self.context.uplink(self.phase))
            log.used([handle], combined, state["version"])
            state = self.applied(fed, state, self._mixed(state, handle, combined))
            taken += 1
        return state

    def _mixed(self, state: Tree, handle: Handle, combined: Combined) -> Combined:
        """The reply as what the model moves by: ``alpha_d (base + update - w)``, and running statistics likewise."""
        if combined.n == 0:
            return combined
        alpha = self.pacing.alpha * self.pacing.staleness.weight(state["version"] - handle.version)
        base, now = handle.flight.request.message["broadcast"]["params"], state["server"]["params"]
        update = T.scale(T.sub(T.add(base, combined.value["update"]), now), alpha)
        value = {**combined.value, "update": update}
        if "buffers" in value:
            value["buffers"] = T.add(T.scale(state["buffers"], 1.0 - alpha), T.scale(value["buffers"], alpha))
        return replace(combined, value=value)
