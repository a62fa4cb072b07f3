"""Central differential privacy for clients: they clip, a trusted server adds up and adds noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
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
from atoll.core.requests.stage import Guarding
from atoll.core.validation import Checked
from atoll.learn.selection.base import Selection
from atoll.stages import Clip

from ..algorithm import Algorithm, Compressing, LocalWork, Phased, Private, RoundInfo
from ..capabilities import BLIND, ONE_MODEL, PLAIN_MEAN, SUMMED
from ..wrapped import Wrapped, dry_reply
from .base import Mechanism, TrainingParts, secret_sample
from .claim import Attendance, Guarantee
from .noisy_sum import NoisySum

if TYPE_CHECKING:
    from atoll.core.requests.stage import Stage

__all__ = ["AdaptiveClip", "BITS", "CentralDP", "Clipped", "ClippedInside"]


@dataclass(frozen=True, kw_only=True)
class Clipped(Wrapped, Private):
    """The base, whose clients scale every value that they send down to norm ``bound``, and send nothing beside: ``v min(1, bound / ||v||)``.

    Attributes:
        base: the algorithm inside.
        bound: largest L2 norm of a value.
    """

    installed: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    bound: float = 1.0

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with clipped values."""
        reply, state = self.base.finish(local, broadcast, client, work)
        return {name: clip_aggregate(a, self.bound) if a.staged else a for name, a in reply.items()}, state


def clip_aggregate(aggregate: Aggregate, bound: Any, unit: Any = 1.0) -> Aggregate:
    """Return the aggregate with its value scaled down to norm ``bound``, then divided by ``unit``, in the leaves' own dtypes."""
    length = T.norm(aggregate.value)
    longer = (length > bound) * 1.0
    factor = bound / (bound + (length - bound) * longer) / unit  # bound / max(length, bound), without a division by 0

    def scale_leaf(leaf: Any) -> Any:
        made = leaf * factor
        return made.astype(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic) else made

    return aggregate.with_value(T.map(scale_leaf, aggregate.value))


def replies_as(algorithm: Algorithm) -> bool:
    """Return whether what clients send in every phase comes from this algorithm's own ``finish``, and not from a pass of another kind."""
    return all(type(facet(algorithm, Phased).passes(phase)[-1]) is type(algorithm) for phase in algorithm.phases)


# ---------------------------------------------------------------- adaptive clipping


BITS = "below"
"""Name of the value that tells whether updates were below their norms."""
_STATE = "clips"


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Checked):
    """Move the clip towards a quantile of the clients' norms: ``C <- C exp(-rate (b - quantile))`` after every round.

    ``b`` is the share of clients whose update was below ``C``: each sends a bit, the server adds noise to their sum. So the clip follows the norms
    without a release that is not counted. The bits take ``share`` of the privacy of a round (of ``1/z^2``), which costs the update
    ``1/sqrt(1 - share)`` more noise. Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1.
    We deviate in one thing: an algorithm that sends several values has a clip for each.

    Attributes:
        quantile: the share of clients whose updates are not clipped.
        rate: how fast the clip moves.
        share: part of a round's privacy that the bits take, in (0, 1). The noise on ``b`` has standard deviation ``z / (2 m sqrt(share))``, for ``m`` expected clients.
    """

    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigError(f"quantile={self.quantile}", remedy="use a share in (0, 1)")
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise ConfigError(f"rate={self.rate}", remedy="use a finite number above 0")
        if not 0 < self.share < 1:
            raise ConfigError(f"share={self.share}", remedy="use a share in (0, 1), such as 0.01")

    def move_clip(self, clip: float, below: float) -> float:
        """Return the clip of the next round, from the share of clients below this one's."""
        return clip * math.exp(-self.rate * (below - self.quantile))


@dataclass(frozen=True, kw_only=True)
class ClippedInside(Wrapped, Private):
    """The base, whose clients send ``value min(1/C, 1/||value||)`` and bits, with norms that the server sends along.

    What leaves has norm at most 1 whatever ``C`` is, so noise relative to 1 is enough in every round; the server multiplies by ``C`` again.
    ``n`` bits have the values ``(b - 1/2) 2/sqrt(n)``: their norm is 1 too.

    Attributes:
        base: the algorithm inside; it must run one update of its own kind in its only phase.
        begin: the norms of the first round.
        adapt: how they move.
    """

    installed: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    begin: float = 1.0
    adapt: AdaptiveClip = field(default_factory=AdaptiveClip)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.base.phases) != 1 or not replies_as(self.base):
            raise CompositionError(
                f"{type(self.base).__name__} has several phases, or replies with a pass of another kind",
                where="AdaptiveClip",
                remedy="use a base with one update in a round, such as FedAvg, or a fixed clip",
            )

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast, and the norms."""
        return {**self.base.broadcast(state, phase), _STATE: state[_STATE]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state."""
        return self.base.start(_own(broadcast), client)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state, and a norm for every value that clients send."""
        reply = dry_reply(self.base, params)
        names = sorted(name for name, a in reply.items() if a.staged)
        return {**self.base.init(params), _STATE: {name: np.float64(self.begin) for name in names}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with values scaled into the unit ball, and the bits."""
        reply, state = self.base.finish(local, _own(broadcast), client, work)
        clips, bits = broadcast[_STATE], []
        for name in sorted(clips):
            inside = T.norm(reply[name].value) <= clips[name]
            bits.append((inside * 2.0 - 1.0) / math.sqrt(len(clips)))
            reply[name] = clip_aggregate(reply[name], clips[name], clips[name])
        return {**reply, BITS: Mean(T.stack(bits), examples=work.examples)}, state

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, with values of their own size, and move the norms."""
        clips, bits = state[_STATE], sums[BITS]
        whole = {name: T.scale(value, float(clips[name])) if name in clips else value for name, value in sums.items()}
        whole.pop(BITS)
        made = self.base.fold(state, whole, info, phase)
        below = {
            name: 0.5 + float(bit) * math.sqrt(len(clips)) / 2 for name, bit in zip(sorted(clips), bits, strict=True)
        }
        return {
            **made,
            _STATE: {name: np.float64(self.adapt.move_clip(float(c), below[name])) for name, c in clips.items()},
        }


def _own(broadcast: Tree) -> Tree:
    """Return what the base sends."""
    return {name: value for name, value in broadcast.items() if name != _STATE}


# ---------------------------------------------------------------- central differential privacy for clients


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
        bound = clip if fast else max(_bound_phase(training, tuple(uplink), phase) for phase in given.phases)
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


def _bound_phase(training: TrainingParts, uplink: tuple[Stage, ...], phase: str) -> float:
    """Return the largest norm of one value of a client after all stages of a phase.

    Raises:
        CompositionError: a stage after the clip promises no bound.
    """
    given = Chain(uplink)
    stages = (*given.value_stages, *facet(training.algorithm, Compressing).uplink(phase), *given.summand_stages)
    bound = Chain(stages).bound
    if bound is None:
        last = next(stage for stage in reversed(stages) if facet(stage, Guarding).sensitivity(1.0) is None)
        raise CompositionError(
            f"{type(last).__name__} acts after the clip, and says no bound of what one client can change",
            where="Training.privacy",
            remedy="leave that stage out, or use an algorithm without it",
        )
    return bound
