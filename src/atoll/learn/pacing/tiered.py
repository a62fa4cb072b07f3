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

    @property
    def needs(self) -> tuple[Need, ...]:
        """Replies that may be weighed."""
        return (*super().needs, Need(DELTA, "mixes the models of tiers"))

    @property
    def offers(self) -> frozenset[Capability]:
        """Nothing: its rounds are those of a tier."""
        return super().offers - {WHOLE_POPULATION}

    def check(self, context: Context) -> None:
        """Refuse more tiers than clients at work."""
        super().check(context)
        require_at_work(self, f"tiers={self.tiers}", self.tiers, context.cohort)

    def mixture(self, updates: NDArray[np.int64]) -> NDArray[np.float64]:
        """Weights of the tiers' models."""
        return cross_tier(updates) if self.weights == "fedat" else np.full(self.tiers, 1.0 / self.tiers)

    def course(self, context: Context) -> Course:
        """Rounds of one tier each."""
        from .tier_rounds import TierRounds

        return TierRounds(self, context)
