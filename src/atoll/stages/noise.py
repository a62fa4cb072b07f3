"""Noise for differential privacy, added by each client to its own update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian, NonPrivate
from atoll.core.requests.stage import Guarding, Stage, StageContext
from atoll.privacy.discrete import GaussianLattice, clip_rows, words_of

from .remembering import one_of
from .rows import lay_out, put_back

__all__ = ["GaussianNoise"]


@dataclass(frozen=True)
class GaussianNoise(Stage, Guarding):
    """Add ``N(0, (multiplier S)^2 / n)`` to each entry, where ``S`` bounds the client's update (``Clip``) and ``n`` replies share the noise.

    Every observer sees noise of standard deviation at least ``multiplier S``, so one round is a Gaussian release of noise multiplier
    ``multiplier``: it bounds how well two runs can be told apart of which one lacks a client's update. A server sees who takes part: against it a client's update is
    replaced by another, which moves the sum twice as far, and accountants count half the multiplier. ``n = 1`` if single replies can be seen
    (local differential privacy). ``n`` is the quorum if only sums can be seen (a secure reducer), or if the party that adds up is
    ``trusted`` to reveal only the sum. A weighted mean also needs ``n = 1``: clients with less weight would add too little noise, so use
    ``aggregation=Equal()``. McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models" (clipping and noise); Kairouz, Liu,
    Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation" (shared noise).

    Each client draws from its own secret, and each named value of its reply is a separate release. The number of examples that weights a reply
    is not protected. The noise is a discrete Gaussian on a lattice of a power of two, to which the update is rounded, so that no last bits tell it (Mironov 2012; see
    `atoll.privacy.discrete`); an update that is longer than its bound by rounding is scaled down again. We claim no amplification by sampling.

    Attributes:
        multiplier: noise divided by sensitivity.
        trusted: whether the party that adds up the replies is trusted to reveal only their sum; the guarantee then holds against those who see the sum.
        unit: the unit of protection: ``"user"`` or ``"island"``, one client's whole contribution.
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

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one."""
        return T.map(lambda leaf: leaf[0], self.encode_block(one_of(value), context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Add independent noise to each client's update."""
        rows, like = lay_out(block)
        lattice = GaussianLattice(self.scale(context))
        noisy = clip_rows(np.asarray(rows, np.float64), _require_bound(context.sensitivity), 2, lattice.step)
        for row, secret in zip(noisy, context.secrets(), strict=True):
            row += lattice.draw(words_of(secret.generator()), len(row))
        noisy *= lattice.step
        return put_back(noisy, like)

    def scale(self, context: StageContext) -> float:
        """The standard deviation of one client's noise."""
        together = context.replies if context.hidden or self.trusted else 1
        return self.multiplier * _require_bound(context.sensitivity) / math.sqrt(together)

    def covers(self, other: Stage) -> bool:
        """Whether this stage adds at least as much noise for the same unit, without more trust."""
        if not isinstance(other, GaussianNoise) or self.unit != other.unit:
            return False
        return self.multiplier >= other.multiplier and (other.trusted or not self.trusted)

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one Gaussian release, and that the server sees replies with less noise if it is ``trusted``."""
        _require_bound(sensitivity)
        noise = Gaussian(unit=self.unit, noise_multiplier=self.multiplier, between="add-remove")
        shown = NonPrivate(unit=self.unit, what="updates that only the others' trust protects", seen_by="server")
        return (noise, shown) if self.trusted else (noise,)


def _require_bound(sensitivity: float | None) -> float:
    if sensitivity is None:
        raise CompositionError(
            "nothing bounds what one client can change, so no noise is enough",
            where="GaussianNoise",
            remedy="put Clip(bound) right before GaussianNoise",
        )
    return sensitivity
