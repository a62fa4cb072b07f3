"""Tiers of equally fast clients: synchronous inside a tier, asynchronous across tiers (FedAT, Chai et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import tree as T
from atoll.core.errors import ConfigError, QuorumError

from ..checks import require_choice, require_count, require_positive
from ..invitation import Inviter
from ..selection.members import places_of
from ..server_state import global_model
from .base import refuse
from .in_flight import MOST_LOOKS, Asynchronous, InFlight
from .soundness import require_at_work, require_delta

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from atoll.core.federation import Federation
    from atoll.core.flight import Handle
    from atoll.core.tree import Tree

    from ..course import Course
    from ..learner import Learner
    from ..training import Training
    from .round_log import RoundLog

__all__ = ["Tiered", "cross_tier", "tiers_of"]


def tiers_of(seconds: ArrayLike, tiers: int) -> NDArray[np.int64]:
    """The tier of each client, 0 the fastest: ranks by seconds, ties by position, cut into ``tiers`` parts that differ by one client at most."""
    took = np.asarray(seconds, dtype=np.float64)
    tier = np.zeros(len(took), dtype=np.int64)
    for m, members in enumerate(np.array_split(np.argsort(took, kind="stable"), tiers)):
        tier[members] = m
    return tier


def cross_tier(updates: ArrayLike) -> NDArray[np.float64]:
    """FedAT's weights of the tiers' models, ``T_{M+1-m} / T`` for tier ``m = 1..M``: the slowest weighs as the fastest has updated.

    Args:
        updates: ``T_m``, how often each tier has updated, fastest first; at least one has.
    """
    counts = np.asarray(updates, dtype=np.float64)
    return np.asarray(counts[::-1] / counts.sum())


@dataclass(frozen=True, kw_only=True)
class Tiered(Asynchronous):
    """Clients of like speed form tiers; each tier holds synchronous rounds at its own pace, and the model is a weighted mean of the tiers' models.

    A tier's round: as many of its clients as the selection rule chooses (the cohort's size, divided by the number of tiers) train from the current model
    ``w``, and their mean becomes the tier's model ``w_m``, running statistics with it. Then ``w = sum_m c_m w_m``. With ``weights="fedat"``, ``c_m = T_{M+1-m} / T`` (`cross_tier`), so that
    slow tiers, which update seldom, are not drowned; until each has updated, the initial model stands for those that have not. With ``"equal"``,
    ``c_m = 1/M``. A round of the history is one tier's.

    A tier's replies are one sum, so that a secure reducer is sound. FedAT's proximal term is ``FedProx``'s, its compression an uplink stage's. One
    tier is ``Synchronous``.

    Chai, Chen, Anwar, Zhao, Cheng, Rangwala 2021, "FedAT: A High-Performance and Communication-Efficient Federated Learning System with Asynchronous
    Tiers", SC; tiers by observed seconds: Chai et al. 2020, "TiFL: A Tier-based Federated Learning System", HPDC.

    Attributes:
        tiers: ``M``, at least 1.
        by: ``"forecast"`` ranks clients once, by what their devices are expected to take; ``"observed"`` by the mean seconds of their replies so far, those
            unknown first, whenever a tier begins.
        weights: ``"fedat"`` or ``"equal"``.
        deadline: seconds of a tier's round; ``None`` waits for everyone whose link is up.
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

    def check(self, job: Training, learner: Learner, data: Any) -> None:
        """Refuse what has no model of a tier's own, a rule that draws tiers itself, and more tiers than clients at work."""
        from ..selection import TiFL  # which cuts its tiers as this does

        if isinstance(job.selection, TiFL):
            why = "TiFL draws the tier whose turn it is, and here every tier holds rounds of its own all the time"
            refuse(self, why, "selection", "use Uniform(), and by='observed' for TiFL's tiers")
        super().check(job, learner, data)
        require_delta(self, job, learner, drops=False)
        if job.aggregation.weighs_population:
            why = f"{type(job.aggregation).__name__} weighs the population, and a tier is a part of it"
            refuse(self, why, "aggregation", "use Renormalised() or EqualWeights()")
        require_at_work(self, f"tiers={self.tiers}", self.tiers, job.selection.cohort_size(len(data)))

    def mixture(self, updates: NDArray[np.int64]) -> NDArray[np.float64]:
        """Weights of the tiers' models."""
        return cross_tier(updates) if self.weights == "fedat" else np.full(self.tiers, 1.0 / self.tiers)

    def course(self, job: Training, learner: Learner, data: Any) -> Course:
        """Rounds of one tier each."""
        return _Tiers(self, job, learner, data)


class _Tiers(InFlight):
    """The rounds of ``Tiered``.

    Its state holds besides: by client ``"took"``, mean seconds of its ``"heard"`` replies, or what is expected; ``"models"`` and ``"updates"`` of the
    tiers; and ``"open"``: turn -> tier, places and end of each round under way.
    """

    def __init__(self, pacing: Tiered, job: Training, learner: Learner, data: Any) -> None:
        super().__init__(pacing, job, learner, data)
        self.pacing = pacing

    @property
    def ahead(self) -> bool:
        """A tier's replies are used together."""
        return False

    def initial(self, fed: Federation) -> Tree:
        """Every tier has the initial model."""
        state, pacing = super().initial(fed), self.pacing
        return {
            **state,
            "took": None if pacing.by == "forecast" else np.zeros(len(fed.parties)),
            "heard": np.zeros(len(fed.parties), dtype=np.int64),
            "models": [global_model(state)] * pacing.tiers,
            "updates": np.zeros(pacing.tiers, dtype=np.int64),
            "open": {},
        }

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Begin rounds of idle tiers, and fold the one that ends first."""
        if state["took"] is None:
            state = {**state, "took": self._expected(fed, state)}
        state = await self._begun(fed, state, log)
        turn, ended = min(state["open"].items(), key=lambda item: (item[1]["ends"], int(item[0])))
        await fed.clock.sleep_until(ended["ends"])
        await self.arrived(fed)
        late = fed.cancel(fed.parties.positions[ended["places"]])
        log.late, log.wasted = log.late + late, log.wasted + late
        state = {**state, "open": {key: one for key, one in state["open"].items() if key != turn}}
        replies = [handle for handle in self.held if handle.flight.request.turn == int(turn)]
        state = await self._folded(fed, state, int(ended["tier"]), replies, log)
        until = state["until"].copy()
        until[ended["places"]] = fed.clock.now()
        self.let_go(replies)
        return {**state, "until": until}

    def _expected(self, fed: Federation, state: Tree) -> NDArray[np.float64]:
        seconds = Inviter(fed, self.job, self.learner, self.data, state).seconds(fed.parties)
        if seconds is None:
            raise ConfigError(
                "nobody knows how long the devices will take",
                where="Tiered.by='forecast'",
                remedy="use devices that can be forecast (atoll.devices.Fleet), or by='observed'",
            )
        return seconds

    async def _begun(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Every tier whose clients are there holds a round."""
        size = math.ceil(self.at_work(fed) / self.pacing.tiers)
        for _ in range(MOST_LOOKS):
            tier, free = tiers_of(state["took"], self.pacing.tiers), self.free(fed, state)
            of_free = tier[places_of(fed.parties.positions, free.positions)]
            busy = {int(one["tier"]) for one in state["open"].values()}
            for m in range(self.pacing.tiers):
                if m not in busy and (of_free == m).any():
                    state = await self.ask(fed, state, log, free[np.flatnonzero(of_free == m)], size)
                    state = self._noted(fed, state, m)
            if state["open"]:
                return state
            await fed.clock.sleep_until(fed.clock.now() + self.look_again)
        raise QuorumError(
            "no tier has a client that can be asked",
            where=f"contact {state['contacts']}",
            remedy="use devices that are there more often",
        )

    def _noted(self, fed: Federation, state: Tree, tier: int) -> Tree:
        """When the round that was just begun will end: with the last reply, or the last loss that is noticed; at the deadline if that is sooner."""
        flight = self.last
        ends = float(np.where(np.isfinite(flight.arrives), flight.arrives, flight.lost).max())
        if self.pacing.deadline is not None:
            ends = min(ends, flight.sent + self.pacing.deadline)
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

    async def _folded(self, fed: Federation, state: Tree, tier: int, replies: list[Handle], log: RoundLog) -> Tree:
        """The tier's model is its clients' mean, and the server's a mixture of the tiers'."""
        if not replies:
            return state
        combined = await fed.combine(replies, uplink=self.job.up(self.phase), reducer=self.reducer)
        log.used(replies, combined, state["version"])
        if not combined.n:
            return state
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
        state = self.applied(fed, state, moved)
        return {**self._observed(fed, state, replies), "updates": updates, "models": models}

    def _observed(self, fed: Federation, state: Tree, replies: list[Handle]) -> Tree:
        if self.pacing.by == "forecast":
            return state
        took, heard = state["took"].copy(), state["heard"].copy()
        for handle in replies:
            place = int(places_of(fed.parties.positions, np.array([handle.party.position]))[0])
            seconds = float(handle.flight.arrives[handle.index] - handle.flight.sent)
            heard[place] += 1
            took[place] += (seconds - took[place]) / heard[place]
        return {**state, "took": took, "heard": heard}
