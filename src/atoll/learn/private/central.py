"""Central differential privacy for clients: they clip, a trusted server adds up and adds noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atoll.core.capability import (
    CENTRAL_SERVER,
    DISTINCT_CLIENTS,
    FIXED_COHORT,
    NO_BUFFERS,
    RELEASED_ONLY,
    REPLIES_ONLY,
    UNMEASURED,
    Need,
)
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian
from atoll.core.exposure import Exposure
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.stages import Clip

from ..algorithm import Compressing
from ..capabilities import BLIND, ONE_MODEL, PLAIN_MEAN, SUMMED
from ..selection import Selection
from .adaptive_clip import BITS, AdaptiveClip, ClippedInside
from .base import Mechanism
from .claim import Attendance, Guarantee
from .clipped import Clipped, replies_as
from .noisy_sum import NoisySum
from .parts import TrainingParts
from .refusing import secret_sample

if TYPE_CHECKING:
    from atoll.core.requests.stage import Stage

    from ..algorithm import Algorithm


__all__ = ["CentralDP"]

_GUARDS = (RELEASED_ONLY, NO_BUFFERS, REPLIES_ONLY, UNMEASURED)


@dataclass(frozen=True, kw_only=True)
class CentralDP(Mechanism):
    """The client-level Gaussian mechanism at a trusted server (DP-FedAvg), around any algorithm that averages.

    Every client scales its update down to norm ``clip``. The server adds up a sample of rate ``q`` of ``N`` clients, adds ``N(0, (z clip)^2)`` to each entry
    and divides by ``q N``: ``u = (sum_{k in S} u_k min(1, clip / ||u_k||) + N(0, (z clip)^2)) / (q N)``. Whoever gets the model, or takes part as
    another client, cannot tell whether one client took part.

    McMahan, Ramage, Talwar, Zhang 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1 with the fixed-denominator estimator
    and equal weights; Geyer, Klein, Nabi 2017, "Differentially Private Federated Learning: A Client Level Perspective". We deviate from Geyer et al.: they
    clip at the median of the norms of a round, without counting what the median tells; ``AdaptiveClip`` counts it.

    A sample counts only if it is drawn from the server's secret: ``Uniform(m)`` becomes a Poisson sample of ``m`` expected clients, or a fixed sample
    if clients are replaced. What a round costs is then charged to every client. Samples and noise come from a key of the server that is in its folder,
    never from the seed. If a client sends several values, each has its own clip and noise, and all of them together have noise multiplier ``z``. The
    noise is discrete, on a lattice to which the sum is rounded (Mironov 2012 attacks the last bits of floating-point noise), and drawn for the very sum that it hides: a round that is
    repeated with the same sum releases the same, and one with another sum is counted anew.

    The server sees updates, or their sum under a secure reducer: it is trusted. Its own records (rows, device tables, the run folder) are not protected;
    the model is.

    Attributes:
        clip: largest norm of a client's update, ``C``; with ``adapt`` that of the first round.
        adapt: how the clip follows the clients' norms; ``None`` keeps it.
        amplified: whether the sampling is counted; it must then be one that others cannot foresee.
    """

    clip: float
    adapt: AdaptiveClip | None = None
    amplified: bool = True
    unit: Literal["user", "island"] = "user"
    adversary: Literal["clients", "model"] = "model"
    protects: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "unit": ("user", "island"),
        "adversary": ("clients", "model"),
        "neighbours": ("add-remove", "replace-one"),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "server": "a mechanism that adds noise before the server sees anything",
        "example": "a mechanism for examples",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip={self.clip}", where="CentralDP", remedy="use a finite norm above 0")
        if not isinstance(self.adapt, AdaptiveClip | None):
            raise ConfigError(f"adapt={self.adapt!r}", where="CentralDP", remedy="use AdaptiveClip(...), or None")

    @property
    def needs(self) -> tuple[Need, ...]:
        """A server that knows a round's clients beforehand, chose them without looking at their data, and sees each once."""
        why = "adds noise to the sum of one server's round"
        return (
            Need(CENTRAL_SERVER, why, "a mechanism that adds noise at the clients"),
            Need(FIXED_COHORT, why, "a mechanism that adds noise at the clients"),
            Need(ONE_MODEL, why, "a mechanism that adds noise at the clients"),
            Need(BLIND, "protects who takes part"),
            Need(DISTINCT_CLIENTS, "bounds what a client adds to a sum"),
            Need(SUMMED, "adds noise to sums and means"),
            *(Need(c, "protects what it adds noise to, and nothing beside it") for c in _GUARDS),
        )

    @property
    def assuming(self) -> tuple[str, ...]:
        """The server is trusted, and shows nothing but models."""
        return (
            "the server is trusted with updates, and shows others its models only, not its records",
            "whether a client drops out does not depend on its data",
        )

    def check(self, training: TrainingParts) -> None:
        """Refuse another aggregation, and stages whose output has no bound."""
        super().check(training)
        if PLAIN_MEAN not in training.aggregation.offers:
            raise CompositionError(
                f"CentralDP weights clients equally over a fixed denominator, and {type(training.aggregation).__name__} weights them in its own way",
                where="Training.aggregation",
                remedy="leave aggregation out",
            )

    def selected(self, training: TrainingParts) -> Selection:
        """Return the selection, drawn in secret if it is to be counted."""
        return secret_sample(self, training, self.amplified)

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install a clip at the clients, and noise over a fixed denominator at the server."""
        given, clip = training.algorithm, self.clip if self.adapt is None else 1.0
        inside: Algorithm = Clipped(base=given, bound=clip)
        if self.adapt is not None:
            inside = ClippedInside(base=given, begin=self.clip, adapt=self.adapt)
        staged = bool(training.uplink) or any(facet(given, Compressing).uplink(phase) for phase in given.phases)
        # A clip inside the update is compiled with it; where another stage acts, or a pass of another kind replies, a stage clips.
        fast = replies_as(inside) and not staged and taking.alone
        uplink = training.uplink if fast else (Clip(clip, alone=True), *training.uplink)
        algorithm = inside if self.adapt is not None or (replies_as(inside) and not staged) else given
        bound = clip if fast else max(_bound(training, tuple(uplink), phase) for phase in given.phases)
        moved = bound if self.neighbours == "add-remove" else 2 * bound
        return {
            "algorithm": algorithm,
            "uplink": uplink,
            "aggregation": NoisySum(
                bound=bound,
                sensitivity=moved,
                expected=taking.cohort,
                noise=noise,
                values=taking.values,
                released=self.events(taking, noise)[0],
                shares=() if self.adapt is None else ((BITS, self.adapt.share),),
            ),
        }

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return one Gaussian release of a round."""
        drawn = taking.drawn if self.amplified else {}
        between = "add-remove" if self.neighbours == "add-remove" else ""
        return (Gaussian(unit=self.unit, noise_multiplier=noise, between=between, **drawn),)

    def exposures(self, claim: Guarantee) -> tuple[Exposure, ...]:
        """Return what the promise is for."""
        return (
            Exposure("whoever the promise is against", f"the models of all rounds: {claim}", "; ".join(self.assuming)),
        )


def _bound(training: TrainingParts, uplink: tuple[Stage, ...], phase: str) -> float:
    """Return the largest norm of one value of a client after all stages of a phase.

    Raises:
        CompositionError: a stage after the clip promises no bound.
    """
    given = Chain(uplink)
    stages = (*given.value_stages, *facet(training.algorithm, Compressing).uplink(phase), *given.summand_stages)
    bound = Chain(stages).bound
    if bound is None:
        last = next(stage for stage in reversed(stages) if stage.sensitivity(1.0) is None)
        raise CompositionError(
            f"{type(last).__name__} acts after the clip, and says no bound of what one client can change",
            where="Training.privacy",
            remedy="leave that stage out, or use an algorithm without it",
        )
    return bound
