"""Tiers of equally fast clients: synchronous inside a tier, asynchronous across tiers (FedAT, Chai et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.capability import Capability, Need

from ..capabilities import DELTA, WHOLE_POPULATION
from ..checks import require_choice, require_count, require_positive
from .tiers import cross_tier
from .versions.asynchronous import Asynchronous, require_at_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.rounds.loop import Course

    from ..context import Context

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
        from .tier_rounds import TierRounds

        return TierRounds(self, context)
