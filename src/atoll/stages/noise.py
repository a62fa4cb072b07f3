"""Noise for differential privacy, added by each client to its own update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Stage

from .remembering import one_of
from .rows import lay_out, put_back

__all__ = ["GaussianNoise"]


@dataclass(frozen=True)
class GaussianNoise(Stage):
    """Adds ``N(0, (multiplier S)^2 / n)`` to every entry, where ``S`` bounds the client's update (``Clip``) and ``n`` replies share the noise.

    Whatever anyone sees has noise of standard deviation at least ``multiplier S``, so that one round is a Gaussian release of noise multiplier
    ``multiplier``: two runs that differ in the presence of one client's update cannot be told apart better than that. ``n = 1`` where single
    replies can be seen (local differential privacy). ``n`` is the quorum where only sums can (a secure reducer), or where whoever adds up is
    ``trusted`` to show nothing else. A weighted mean needs ``n = 1`` too: others with less weight would add too little, so use
    ``aggregation=Equal()``. McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models" (clipping and noise); Kairouz, Liu,
    Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation" (shared noise).

    Each client draws from its own secret, and every named value of its reply is a release of its own. The number of examples by which replies
    are weighted is not protected. Where we deviate: noise is floating-point, not discrete, and amplification by sampling is not claimed.

    Attributes:
        multiplier: noise over sensitivity.
        trusted: whoever adds up the replies shows nothing but their sum; the promise is then to those who see the sum.
        unit: what is protected: ``"user"`` or ``"island"``, one client's whole contribution.
    """

    multiplier: float = 1.0
    trusted: bool = False
    unit: Literal["user", "island"] = "user"
    linear: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.multiplier) and self.multiplier > 0):
            raise ConfigError(
                f"multiplier={self.multiplier}", where="GaussianNoise", remedy="use a finite number above 0"
            )
        if self.unit not in ("user", "island"):
            raise ConfigError(f"unit={self.unit!r}", where="GaussianNoise", remedy="use 'user' or 'island'")

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """A block of one."""
        return T.map(lambda leaf: leaf[0], self.encode_block(one_of(value), context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Every client's update with noise of its own."""
        rows, like = lay_out(block)
        noise = np.empty(rows.shape)
        for i, secret in enumerate(context.secrets()):
            secret.generator().standard_normal(out=noise[i, :])
        noise *= self.scale(context)
        noise += rows
        return put_back(noise, like)

    def scale(self, context: StageContext) -> float:
        """Standard deviation of one client's noise."""
        together = context.replies if context.hidden or self.trusted else 1
        return self.multiplier * _bounded(context.sensitivity) / math.sqrt(together)

    def covers(self, other: Stage) -> bool:
        """At least as much noise for the same unit, with no more trust."""
        if not isinstance(other, GaussianNoise) or self.unit != other.unit:
            return False
        return self.multiplier >= other.multiplier and (other.trusted or not self.trusted)

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """One Gaussian release."""
        _bounded(sensitivity)
        return (Gaussian(unit=self.unit, noise_multiplier=self.multiplier),)


def _bounded(sensitivity: float | None) -> float:
    if sensitivity is None:
        raise CompositionError(
            "nothing bounds what one client can change, so no noise is enough",
            where="GaussianNoise",
            remedy="put Clip(bound) right before GaussianNoise",
        )
    return sensitivity
