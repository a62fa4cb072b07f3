"""Distributed differential privacy: every client adds a share of the noise, and the server sees nothing but a secure sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atoll.core.capability import DISTINCT_CLIENTS, EXCESS_REMOVED, FIXED_COHORT, SINGLE_REPLIES, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event
from atoll.core.exposure import Exposure
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.stage import Guarding, Worded
from atoll.learn.aggregation.base import EqualWeights
from atoll.privacy.discrete import SkellamLaw
from atoll.secure.noise import (
    MOST_PARTS,
    DiscreteGaussianNoise,
    LatticeNoise,
    SkellamMixtureNoise,
    SkellamNoise,
    rounded_bound,
)
from atoll.stages import Clip, Rotation
from atoll.stages.coded.rotation import bound_entry

from ..algorithm import Compressing
from ..capabilities import EQUAL_REPLIES, PLAIN_MEAN, SUMMED
from .base import Mechanism, TrainingParts
from .claim import Attendance, Guarantee

if TYPE_CHECKING:
    from atoll.core.requests.stage import Stage

__all__ = ["DistributedDP"]

_KINDS: dict[str, type[LatticeNoise]] = {
    "skellam": SkellamNoise,
    "discrete-gaussian": DiscreteGaussianNoise,
    "mixture": SkellamMixtureNoise,
}
_ODDS = 2.0**-40
"""Chance that an entry of a round's sum wraps around, at most."""
_ROOM = 1.01
_UNKNOWN = 1 << 30
"""Entries of an update until the model is known."""


@dataclass(frozen=True, kw_only=True)
class DistributedDP(Mechanism):
    """Noise that clients add together under a secure reducer: the server, too, learns only a sum with enough noise in it.

    Every client scales its update down to norm ``clip``, rotates it at random so that no entry stands out, rounds it to a grid of whole numbers and adds noise
    of variance ``(z D)^2 / h``. The sum of ``least`` replies, ``h`` of them from clients that do not tell the server their noise, has then at least the noise
    multiplier ``z``. Sums of fewer replies are never opened. The mean is over those that replied, with equal weights.

    Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation" (``law="discrete-gaussian"``);
    Agarwal, Kairouz, Liu 2021, "The Skellam Mechanism for Differentially Private Federated Learning" (``law="skellam"``); Bao et al. 2022 (``law="mixture"``). We deviate:
    the rotation adds no entries; the grid follows from ``bits``, so that an entry of a sum wraps around with a chance below ``2^-40``, whichever clients reply.

    If more than ``least`` clients reply, the sum has more noise than it needs, by the factor ``sqrt(replies / least)``. With ``remove_excess=True`` it is taken back (XNoise; Jiang,
    Wang, Chen 2024): once it is known who replied, the clients reveal the seeds of the noise that the sum does not need, and the sum has what ``epsilon`` needs, whoever dropped out. The
    ledger is charged for the noise that remains. See `atoll.secure.noise.ExcessNoise` and docs/concepts/privacy.md.

    The sample of clients is not counted, because the server knows it. That a client takes part is not hidden from it either: against the server the claim is for neighbours that
    replace a client's data. ``adversary="model"`` can claim ``neighbours="add-remove"``, with half the noise.

    Attributes:
        clip: largest norm of a client's update.
        bound: largest norm where the noise is added, if stages in between change norms; by default what they promise. Updates that are longer are scaled down again. With
            pruning behind the rotation, ``RandomK(f, shared=True)``, about ``1.1 clip / sqrt(f)`` leaves nearly all updates as they are.
        least: replies that a sum has at least, and that share the noise; the pacing's quorum must not be smaller. With ``local=True`` it is 1.
        law: of the noise.
        bits: length of the words in which sums are added up; fewer bits make a coarser grid.
        corrupt: share of the clients that may tell the server their noise; with ``remove_excess``, the same share of ``least``, however many reply.
        remove_excess: whether noise beyond that of ``least`` replies is taken back. It needs ``SecureAggregation`` and noise that adds up, and costs a share of a seed for each
            possible dropout at each holder.
        local: each client adds all the noise itself, which protects it under any reducer, and costs ``sqrt(n)`` times the accuracy of shared noise.
    """

    clip: float
    bound: float | None = None
    least: int | None = None
    law: Literal["skellam", "discrete-gaussian", "mixture"] = "skellam"
    bits: int = 20
    corrupt: float = 0.0
    local: bool = False
    remove_excess: bool = False
    unit: Literal["user", "island"] = "user"
    accountant: Literal["rdp"] = "rdp"
    adversary: Literal["server", "clients", "model"] = "server"
    neighbours: Literal["add-remove", "replace-one"] = "replace-one"
    protects: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "unit": ("user", "island"),
        "adversary": ("server", "clients", "model"),
        "neighbours": ("add-remove", "replace-one"),
        "accountant": ("rdp",),
    }
    instead: ClassVar[Mapping[str, str]] = {"example": "a mechanism for examples"}

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "DistributedDP"
        self._require_neighbours(where)
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip={self.clip}", where=where, remedy="use a finite norm above 0")
        if self.bound is not None and not (math.isfinite(self.bound) and self.bound > 0):
            raise ConfigError(f"bound={self.bound}", where=where, remedy="use a finite norm above 0, or leave it out")
        if self.law not in _KINDS:
            raise ConfigError(f"law={self.law!r}", where=where, remedy=f"use one of {', '.join(map(repr, _KINDS))}")
        if not 8 <= self.bits <= 32:
            raise ConfigError(f"bits={self.bits}", where=where, remedy="use words of 8 to 32 bits")
        if not 0 <= self.corrupt < 1:
            raise ConfigError(f"corrupt={self.corrupt}", where=where, remedy="use a share from 0 to below 1")
        if self.local and (self.least not in (None, 1) or self.corrupt):
            raise ConfigError(
                f"local=True, least={self.least}, corrupt={self.corrupt}",
                where=where,
                remedy="leave least and corrupt out: local noise is not shared",
            )
        if not self.local and (self.least is None or self.least < 2):
            raise ConfigError(
                f"least={self.least}", where=where,
                remedy="give the smallest number of replies that a sum may have, 2 or more, or use local=True",
            )  # fmt: skip
        if self.remove_excess and (self.local or not _KINDS[self.law].adds_up):
            raise ConfigError(
                f"remove_excess=True with {'local=True' if self.local else f'law={self.law!r}'}",
                where=where,
                remedy="leave remove_excess out: local noise has no excess" if self.local else "use law='skellam' or 'mixture': noise in parts must add up",
            )  # fmt: skip
        if self.sharing < 1:
            raise ConfigError(
                f"corrupt={self.corrupt} of least={self.least}",
                where=where,
                remedy="use a larger least: nobody is left who adds noise",
            )

    def _require_neighbours(self, where: str) -> None:
        """Refuse to hide from a server whether a client takes part."""
        if self.adversary == "server" and self.neighbours == "add-remove":
            raise ConfigError(
                "neighbours='add-remove' against a server, which sees who takes part",
                where=where,
                remedy="use neighbours='replace-one', or adversary='model'",
            )

    @property
    def sharing(self) -> int:
        """Replies whose noise counts, ``h``: ``least`` without those that may collude."""
        least = self.least or 1
        return least - math.floor(self.corrupt * least + 1e-9)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Sums of a known cohort, in which a client counts once and as much as any other."""
        why = "shares its noise among the replies of one sum"
        shared = () if self.local else tuple(Need(c, why, "local=True") for c in (FIXED_COHORT, SUMMED, EQUAL_REPLIES))
        excess = (Need(EXCESS_REMOVED, "takes excess noise back", "remove_excess=False"),) if self.remove_excess else ()
        return (*shared, *excess, Need(DISTINCT_CLIENTS, "bounds what a client adds to a sum"))

    @property
    def assuming(self) -> tuple[str, ...]:
        """Enough clients keep their noise to themselves."""
        taking = "who takes part is not hidden, and whether a client drops out does not depend on its data"
        if self.local:
            return (taking,)
        told = (
            f"at least {self.sharing} of the {self.least} or more clients of a sum do not tell the server their noise"
            if not self.remove_excess
            else f"at most {(self.least or 1) - self.sharing} clients of a sum tell the server their noise"
        )
        return ("the secure reducer shows nothing but sums", told, taking)

    def check(self, training: TrainingParts) -> None:
        """Refuse reducers that show single replies, sums of too few, other weights, and stages without a bound."""
        super().check(training)
        reducer = type(training.reducer).__name__
        if not self.local and (SINGLE_REPLIES in training.reducer.offers or not training.reducer.secure):
            raise CompositionError(
                f"DistributedDP shares its noise among {self.least} replies, and {reducer} shows the server single replies, with too little noise each",
                where="Training.reducer",
                remedy="use reducer=SecureAggregation(), or DistributedDP(local=True, ...) for noise that single replies have",
            )
        if PLAIN_MEAN not in training.aggregation.offers:
            raise CompositionError(
                f"DistributedDP weights clients equally, and {type(training.aggregation).__name__} weights them in its own way",
                where="Training.aggregation",
                remedy="leave aggregation out",
            )
        quorum = getattr(training.pacing, "quorum", None)
        if not self.local and isinstance(quorum, int) and quorum < (self.least or 2):
            raise CompositionError(
                f"a quorum of {quorum} replies, fewer than the {self.least} that share the noise",
                where="Training.pacing",
                remedy=f"use pacing=Synchronous(quorum={self.least})",
            )

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install clip, rotation and noise at the clients, with equal weights."""
        quorum = getattr(training.pacing, "quorum", None)
        if (
            not self.local
            and isinstance(quorum, float)
            and taking.clients
            and math.ceil(quorum * taking.cohort) < (self.least or 2)
        ):
            raise CompositionError(
                f"a quorum of {quorum:g} of {taking.cohort:g} clients, fewer than the {self.least} replies that share the noise",
                where="Training.pacing",
                remedy=f"use pacing=Synchronous(quorum={self.least})",
            )
        first: tuple[Stage, ...] = (Clip(self.clip, alone=True), Rotation())
        given = (*first, *training.uplink)
        bound = max(self._bound_phase(training, given, phase) for phase in training.algorithm.phases)
        return {"uplink": (*given, self.stage(taking, noise, bound)), "aggregation": EqualWeights()}

    def _bound_phase(self, training: TrainingParts, given: tuple[Stage, ...], phase: str) -> float:
        stages = (*given, *facet(training.algorithm, Compressing).uplink(phase))
        last = next(
            (
                s
                for s in stages
                if facet(s, Guarding).sensitivity(1.0) is None
                or (s.packs and s.on == "summand")
                or facet(s, Worded).words
            ),
            None,
        )
        bound = Chain(stages).bound
        if last is not None or bound is None:
            raise CompositionError(
                f"{type(last).__name__} acts between clip and noise, and says no bound of what one client can change",
                where="Training.privacy",
                remedy="leave that stage out: bits=8 or more is a quantiser of its own",
            )
        return bound if self.bound is None else min(bound, self.bound)

    def stage(self, taking: Attendance, noise: float, bound: float | None = None) -> LatticeNoise:
        """Return the stage with this noise multiplier, on the finest grid whose sums do not wrap around."""
        clip, kind = self.clip if bound is None else bound, _KINDS[self.law]
        multiplier, moved = noise * math.sqrt(taking.values), 2 if self.neighbours == "replace-one" else 1
        parties, entries = max(taking.clients, self.least or 1), taking.entries or _UNKNOWN
        flat = bound_entry(entries, _ODDS / parties) if taking.entries else 1.0
        spread = multiplier * moved * clip
        finest = 1.05 * spread / math.sqrt(self.sharing * SkellamLaw.largest)
        step = max(finest, 2 * (parties * flat * clip + spread * math.sqrt(parties / self.sharing)) / 2.0**self.bits)
        settings: dict[str, Any] = {
            "multiplier": multiplier, "clip": clip, "least": self.least or 1, "corrupt": (self.least or 1) - self.sharing, "bits": self.bits,
            "replaced": moved == 2, "unit": self.unit, "most": self._most(taking),
        }  # fmt: skip
        while step < clip / 2:
            length = rounded_bound(clip, step, taking.entries) / clip if taking.entries else 1.0
            inflation = max(_ROOM, 1.0001 * length)
            if step >= finest * inflation:
                made = kind(step=step, inflation=inflation, **settings)
                if made.wraps(parties, entries, flat) <= _ODDS:
                    return made
            step *= 1.1
        raise ConfigError(
            f"bits={self.bits} for {parties} clients with noise multiplier {noise:.3g}",
            where="DistributedDP",
            remedy=f"use bits={min(32, self.bits + 4)}: in shorter words the grid would be coarser than an update",
        )

    def _most(self, taking: Attendance) -> int:
        """The replies up to which noise is taken back: all that are invited. 0 if there is nothing to take back.

        Raises:
            ConfigError: the noise would have too many parts.
        """
        least, most = self.least or 1, math.ceil(taking.cohort - 1e-9)
        if not self.remove_excess or not taking.clients or most <= least:
            return 0
        if most - least > MOST_PARTS:
            raise ConfigError(
                f"remove_excess=True for {most} clients and least={least}: noise in {most - least} parts",
                where="DistributedDP",
                remedy=f"use least={most - MOST_PARTS} or more, for at most {MOST_PARTS} parts, or remove_excess=False",
            )
        return most

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return the release of the sum of ``least`` replies, once for each value."""
        return (replace(self.stage(taking, noise).released(), count=taking.values),)

    def spent(self, taking: Attendance, noise: float) -> float:
        """Return epsilon after all rounds; infinite where no grid carries so little noise."""
        try:
            return super().spent(taking, noise)
        except ConfigError as refused:
            if "bits=" in str(refused) or "step" in str(refused):
                return math.inf
            raise

    def exposures(self, claim: Guarantee) -> tuple[Exposure, ...]:
        """Return what the promise is for."""
        return (
            Exposure("whoever the promise is against", f"the sums of all rounds: {claim}", "; ".join(self.assuming)),
        )
