"""TiFL: cohorts of equally fast clients, with credits that keep every tier in the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.core.validation import numbers

from ..checks import require_count
from .base import Candidates, Seen, members, places_of
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["TiFL", "cross_tier", "tiers_of"]


def tiers_of(seconds: ArrayLike, tiers: int) -> NDArray[np.int64]:
    """Return the tier of each client, 0 the fastest: ranks by seconds, ties by position, cut into ``tiers`` parts that differ by one client at most."""
    took = np.asarray(seconds, dtype=np.float64)
    tier = np.zeros(len(took), dtype=np.int64)
    for m, clients in enumerate(np.array_split(np.argsort(took, kind="stable"), tiers)):
        tier[clients] = m
    return tier


def cross_tier(updates: ArrayLike) -> NDArray[np.float64]:
    """Return FedAT's weights of the tiers' models, ``T_{M+1-m} / T`` for tier ``m = 1..M``: the slowest tier's weight is the fastest tier's number of updates.

    Args:
        updates: ``T_m``, number of updates of each tier, fastest first; at least one is positive.
    """
    counts = np.asarray(updates, dtype=np.float64)
    return np.asarray(counts[::-1] / counts.sum())


# ---------------------------------------------------------------- TiFL


@dataclass(frozen=True)
class TiFL(Uniform):
    """Invites a round's cohort from one tier of equally fast clients, so that no client waits for a much slower one.

    First the rule profiles all clients: rounds invite clients that have not replied yet, until each has replied or was asked ``tries`` times. Clients that
    never replied are drop-outs and not asked again (``Synchronous(on_failure="skip")`` lets a round without replies pass). Then the rule cuts the clients
    into tiers by the seconds that their replies took. Each round draws a tier among those with credits left and available clients, takes one of its credits,
    and invites ``count`` of its clients uniformly. All tiers are equally likely at first. Every ``every`` rounds, if the last round's tier does not do better
    than at the check before, probabilities become proportional to ranks: 1 for the tier with the best model fit, ``tiers`` for the worst.

    Z. Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020, Algorithm 2, which takes each tier's accuracy on test data and leaves open how
    accuracies become probabilities. Here the measure of a tier is the mean training loss last reported by its clients; a tier without reports ranks worst.

    Attributes:
        count: clients per round, as in ``Uniform``.
        tiers: ``T``, at least 1.
        credits: rounds that each tier may have after profiling: one number for all, or one per tier, fastest first; ``None`` is no limit. Together they must last for all rounds.
        every: rounds between checks of the tiers' losses, ``I``.
        tries: how often the rule tries to profile a client that does not reply.
    """

    citation: ClassVar[str] = "Chai et al. 2020, TiFL: A Tier-based Federated Learning System"
    tiers: int = 5
    credits: int | Sequence[int] | None = None
    every: int = 10
    tries: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("TiFL", tiers=self.tiers, every=self.every, tries=self.tries)
        given = np.atleast_1d(numbers("TiFL", "credits", 0 if self.credits is None else self.credits))
        if given.shape not in ((1,), (self.tiers,)) or not ((given >= 0) & (given % 1 == 0)).all():
            raise ConfigError(
                f"credits={self.credits!r} for {self.tiers} tiers",
                where="TiFL",
                remedy="give a whole number of rounds of at least 0, or one for each tier",
            )

    @property
    def reports(self) -> Mapping[str, Any]:
        """The loss."""
        return {"loss": None}

    def init(self, parties: Parties) -> Tree:
        """Start with no client profiled.

        Raises:
            ConfigError: there are more tiers than clients.
        """
        n = len(parties)
        if self.tiers > n:
            raise ConfigError(f"tiers={self.tiers} of {n} clients", where="TiFL", remedy=f"use at most {n}")
        most = np.iinfo(np.int64).max if self.credits is None else self.credits
        return {
            "who": members(parties),
            "asked": np.zeros(n, dtype=np.int64),
            "seconds": np.full(n, np.nan),
            "tier": np.full(n, -1, dtype=np.int64),
            "credits": np.broadcast_to(np.asarray(most, dtype=np.int64), self.tiers).copy(),
            "loss": np.full(self.tiers, np.nan),
            "before": np.full(self.tiers, np.nan),
            "chance": np.full(self.tiers, 1.0 / self.tiers),
            "held": 0,
        }

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return clients that are not profiled yet, or some clients of a tier.

        Raises:
            ConfigError: no tier has a credit left.
        """
        at = places_of(state["who"], candidates.parties.positions)
        if self._profiling(state):
            fresh = np.flatnonzero(self._unknown(state)[at])
            # All clients still to be profiled may be away: then the round invites the available ones.
            return self._some(candidates, fresh if len(fresh) else np.arange(len(at)), count)
        tier = state["tier"][at]
        chance = np.where(state["credits"] > 0, state["chance"], 0.0)
        if not chance.any():
            raise ConfigError(
                f"no tier has a credit left in round {candidates.round}",
                where="TiFL",
                remedy="give credits that last for all rounds together, or None",
            )
        chance = np.where(np.isin(np.arange(self.tiers), tier), chance, 0.0)
        if not chance.any():  # no client of a tier with credits is available
            return np.zeros(0, dtype=np.int64)
        drawn = int(candidates.rng.child("tier").generator().choice(self.tiers, p=chance / chance.sum()))
        return self._some(candidates, np.flatnonzero(tier == drawn), count)

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Store seconds while profiling; then losses, one credit less, and new probabilities when due."""
        if self._profiling(state):
            return self._profile_clients(seen, state)
        if not len(seen.asked):
            return state
        tier = int(state["tier"][places_of(state["who"], seen.asked.positions[:1])][0])
        spent, loss = state["credits"].copy(), state["loss"].copy()
        spent[tier] -= 1
        told = np.asarray(seen.reports.get("loss", []), dtype=np.float64)
        if len(told) and seen.examples.sum() > 0:
            loss[tier] = float(seen.examples @ told) / float(seen.examples.sum())
        state = {**state, "credits": spent, "loss": loss, "held": state["held"] + 1}
        if state["held"] % self.every:
            return state
        better = loss[tier] < state["before"][tier]
        worst_first = np.argsort(np.argsort(np.where(np.isnan(loss), np.inf, loss), kind="stable"), kind="stable") + 1.0
        chance = state["chance"] if better or state["held"] == self.every else worst_first / worst_first.sum()
        return {**state, "before": loss, "chance": chance}

    # ------------------------------------------------------------------ profiling

    def _profiling(self, state: Tree) -> bool:
        return bool((state["tier"] < 0).all())

    def _unknown(self, state: Tree) -> NDArray[np.bool_]:
        return np.asarray(np.isnan(state["seconds"]) & (state["asked"] < self.tries))

    def _profile_clients(self, seen: Seen, state: Tree) -> Tree:
        asked, seconds = state["asked"].copy(), state["seconds"].copy()
        asked[places_of(state["who"], seen.asked.positions)] += 1
        seconds[places_of(state["who"], seen.replied.positions)] = seen.seconds
        state = {**state, "asked": asked, "seconds": seconds}
        by_name = np.argsort(seen.asked.roster.ranks(np.asarray(state["who"])), kind="stable")
        known = by_name[~np.isnan(seconds[by_name])]  # ties between equal seconds follow names
        if self._unknown(state).any() or not len(known):
            return state
        tier = np.full(len(seconds), self.tiers, dtype=np.int64)  # drop-outs are in no tier
        tier[known] = tiers_of(seconds[known], self.tiers)
        return {**state, "tier": tier}

    @staticmethod
    def _some(candidates: Candidates, among: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        drawn = candidates.rng.generator().choice(among, size=min(count, len(among)), replace=False)
        return np.asarray(drawn, dtype=np.int64)
