"""Tiers of clients by speed, each with rounds of its own (Chai et al. 2021, FedAT)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.capability import Capability, Need
from atoll.core.errors import ConfigError, QuorumError

from ..capabilities import DELTA, WHOLE_POPULATION
from ..checks import require_choice, require_count, require_positive
from ..round.invitation import Inviter, require_in_time
from ..round.state import averaged_model
from ..selection.base import places_of
from ..selection.tifl import cross_tier, tiers_of
from .asynchronous import MOST_LOOKS, Asynchronous, InFlight, require_at_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Handle
    from atoll.rounds.loop import Course

    from ..context import Context
    from .asynchronous import RoundLog

__all__ = ["Tiered"]


@dataclass(frozen=True, kw_only=True)
class Tiered(Asynchronous):
    """Equally fast clients form tiers. Each tier runs synchronous rounds at its own pace, and the model is a weighted mean of the tiers' models.

    In a tier's round, as many of its clients as the selection rule chooses (the cohort's size, divided by the number of tiers) train from the current model
    ``w``. Their mean becomes the tier's model ``w_m``, including running statistics. Then ``w = sum_m c_m w_m``. With ``weights="fedat"``,
    ``c_m = T_{M+1-m} / T`` (`cross_tier`), so that slow tiers with few updates keep their influence. Until all tiers have updated, the initial model
    replaces the missing ones. With ``"equal"``, ``c_m = 1/M``. A round of the history is one tier's round.

    A tier's replies are one sum, so a secure reducer works. For FedAT's proximal term use ``FedProx``, for its compression an uplink stage. One
    tier is ``Synchronous``.

    Chai, Chen, Anwar, Zhao, Cheng, Rangwala 2021, "FedAT: A High-Performance and Communication-Efficient Federated Learning System with Asynchronous
    Tiers", SC; tiers by observed seconds: Chai et al. 2020, "TiFL: A Tier-based Federated Learning System", HPDC.

    Attributes:
        tiers: ``M``, at least 1.
        by: ``"forecast"`` ranks clients once, by what their devices are expected to take; ``"observed"`` by the mean seconds of their replies so far,
            clients without replies first, whenever a tier starts.
        weights: ``"fedat"`` or ``"equal"``.
        deadline: seconds of a tier's round; ``None`` waits for all clients with a live link.
    """

    tiers: int = 3
    by: str = "forecast"
    weights: str = "fedat"
    deadline: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("Tiered", tiers=self.tiers)
        require_choice("Tiered", "by", self.by, ("forecast", "observed"))
        require_choice("Tiered", "weights", self.weights, ("fedat", "equal"))
        if self.deadline is not None:
            require_positive("Tiered", deadline=self.deadline)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and replies that can be weighted."""
        return (*super().needs, Need(DELTA, "mixes the models of tiers"))

    @property
    def offers(self) -> frozenset[Capability]:
        """Nothing: each round belongs to one tier."""
        return super().offers - {WHOLE_POPULATION}

    def check(self, context: Context) -> None:
        """Refuse more tiers than working clients."""
        super().check(context)
        require_at_work(self, f"tiers={self.tiers}", self.tiers, context.cohort)

    def mixture(self, updates: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of the tiers' models."""
        return cross_tier(updates) if self.weights == "fedat" else np.full(self.tiers, 1.0 / self.tiers)

    def course(self, context: Context) -> Course:
        """Return rounds of one tier each."""
        return TierRounds(self, context)


# ---------------------------------------------------------------- the rounds of ``Tiered``: each belongs to one tier


class TierRounds(InFlight):
    """The rounds of ``Tiered``.

    The state also has, by client, ``"took"``, mean seconds of its ``"heard"`` replies, or the expected seconds; ``"models"`` and ``"updates"`` of the
    tiers; and ``"open"``: turn -> tier, places and end of each running round.
    """

    def __init__(self, pacing: Tiered, context: Context) -> None:
        super().__init__(pacing, context)
        self.pacing = pacing

    @property
    def ahead(self) -> bool:
        """Whether clients run ahead of use, in one block: no, because a tier's replies are used together anyway."""
        return False

    def initial(self, fed: Federation) -> Tree:
        """Start with the initial model in every tier."""
        state, pacing = super().initial(fed), self.pacing
        return {
            **state,
            "took": None if pacing.by == "forecast" else np.zeros(len(fed.parties)),
            "heard": np.zeros(len(fed.parties), dtype=np.int64),
            "models": [averaged_model(state)] * pacing.tiers,
            "updates": np.zeros(pacing.tiers, dtype=np.int64),
            "open": {},
        }

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Start rounds of idle tiers, and fold the round that ends first."""
        if not state["contacts"]:
            require_in_time(Inviter(fed, self.context, state))
        if state["took"] is None:
            state = {**state, "took": self._expect_seconds(fed, state)}
        state = await self._begin_rounds(fed, state, log)
        turn, ended = min(state["open"].items(), key=lambda item: (item[1]["ends"], int(item[0])))
        await fed.clock.sleep_until(ended["ends"])
        await self.hold_arrivals(fed)
        late = fed.cancel(fed.parties.positions[ended["places"]])
        log.late, log.wasted = log.late + late, log.wasted + late
        state = {**state, "open": {key: one for key, one in state["open"].items() if key != turn}}
        replies = [handle for handle in self.held if handle.flight.request.turn == int(turn)]
        state = await self._fold_tier(fed, state, int(ended["tier"]), replies, log)
        until = state["until"].copy()
        until[ended["places"]] = fed.clock.now()
        self.held.let_go(replies)
        return {**state, "until": until}

    def _expect_seconds(self, fed: Federation, state: Tree) -> NDArray[np.float64]:
        seconds = Inviter(fed, self.context, state).seconds(fed.parties)
        if seconds is None:
            raise ConfigError(
                "there is no forecast of how long the devices will take",
                where="Tiered.by='forecast'",
                remedy="use devices that can forecast (atoll.devices.Fleet), or by='observed'",
            )
        return seconds

    async def _begin_rounds(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Start a round in every idle tier with available clients."""
        size = math.ceil(self.at_work(fed) / self.pacing.tiers)
        for _ in range(MOST_LOOKS):
            tier, free = tiers_of(state["took"], self.pacing.tiers), self.free(fed, state)
            of_free = tier[places_of(fed.parties.positions, free.positions)]
            busy = {int(one["tier"]) for one in state["open"].values()}
            for m in range(self.pacing.tiers):
                if m not in busy and (of_free == m).any():
                    state = await self.ask(fed, state, log, free[np.flatnonzero(of_free == m)], size)
                    state = self._note_end(fed, state, m)
            if state["open"]:
                return state
            await fed.clock.sleep_until(fed.clock.now() + self.look_again)
        raise QuorumError(
            "no tier has a client to invite",
            where=f"contact {state['contacts']}",
            remedy="use devices that are available more often",
        )

    def _note_end(self, fed: Federation, state: Tree, tier: int) -> Tree:
        """Note when the new round will end: at the last reply or the last noticed loss, or at the deadline if that is sooner."""
        flight = self.last
        ends = float(np.where(np.isfinite(flight.arrives), flight.arrives, flight.lost).max())
        if self.pacing.deadline is not None:
            ends = min(ends, flight.sent + self.pacing.deadline)
        if not math.isfinite(ends) and not flight.foretold:
            raise ConfigError(
                "it is unknown when real parties will answer, but a tier's round has to end",
                where="Tiered.deadline",
                remedy="give Tiered a deadline",
            )
        if not math.isfinite(ends):
            raise QuorumError(
                f"a client of tier {tier + 1} will never answer, and no link notices",
                where=f"contact {state['contacts']}",
                remedy="give Tiered a deadline",
            )
        places = places_of(fed.parties.positions, flight.parties.positions)
        return {
            **state,
            "open": {**state["open"], str(state["contacts"]): {"tier": tier, "ends": ends, "places": places}},
        }

    async def _fold_tier(self, fed: Federation, state: Tree, tier: int, replies: list[Handle], log: RoundLog) -> Tree:
        """Fold: the tier's model is its clients' mean, and the server's model is a mixture of the tiers' models."""
        if not replies:
            log.failed = f"no client of tier {tier + 1} answered in time"
            return state
        combined = await fed.combine(replies, uplink=self.context.uplink(self.phase), reducer=self.reducer)
        log.used(replies, combined, state["version"])
        replied = combined.n
        combined = self.replace_empty(fed, combined, log)
        if (
            not combined.n
        ):  # a tier without examples keeps its model, and counts: tiers are weighed by each other's steps
            updates = state["updates"].copy()
            updates[tier] += replied > 0
            return {**state, "updates": updates}
        base = replies[0].flight.request.message["broadcast"]["params"]
        updates, models = state["updates"].copy(), list(state["models"])
        updates[tier] += 1
        models[tier] = {**T.add(base, combined.value["update"]), **combined.value.get("buffers", {})}
        shares = self.pacing.mixture(updates).tolist()
        mixed = T.scale(models[0], shares[0])
        for model, share in zip(models[1:], shares[1:], strict=True):
            mixed = T.add(mixed, T.scale(model, share))
        params = state["server"]["params"]
        value = {**combined.value, "update": T.sub({name: mixed[name] for name in params}, params)}
        if "buffers" in value:
            value["buffers"] = {name: mixed[name] for name in value["buffers"]}
        moved = replace(combined, value=value)
        state = self.apply_replies(fed, state, moved)
        return {**self._observe_times(fed, state, replies), "updates": updates, "models": models}

    def _observe_times(self, fed: Federation, state: Tree, replies: list[Handle]) -> Tree:
        if self.pacing.by == "forecast":
            return state
        took, heard = state["took"].copy(), state["heard"].copy()
        for handle in replies:
            place = int(places_of(fed.parties.positions, np.array([handle.party.position]))[0])
            seconds = float(handle.flight.arrives[handle.index] - handle.flight.sent)
            heard[place] += 1
            took[place] += (seconds - took[place]) / heard[place]
        return {**state, "took": took, "heard": heard}
