"""Prefix sums under privacy: a binary tree of noise, in which every addend is in a logarithmic number of nodes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian
from atoll.privacy.discrete import GaussianLattice, words_of

__all__ = ["NoisyPrefix"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoisyPrefix:
    """Noise for the sums of the first ``t`` of ``length`` symmetric matrices, ``t = 1 .. length``.

    The prefix ``[1, t]`` is the union of at most ``L = ceil(log2(length + 1))`` nodes of a binary tree, each with its own Gaussian noise. An addend is in at most
    ``L`` nodes, so all releases together cost ``L`` Gaussian releases, however many there are. Dwork, Naor, Pitassi, Rothblum 2010; Shariff, Sheffet 2018,
    "Differentially Private Contextual Linear Bandits", section 4. The noise of a node follows from a key that only the party has: asking twice gives the same.

    Attributes:
        length: addends, at most.
        multiplier: noise of a node over the sensitivity.
        sensitivity: how far one addend moves a sum, in Frobenius norm.
    """

    length: int
    multiplier: float
    sensitivity: float

    def __post_init__(self) -> None:
        if self.length < 1 or not all(math.isfinite(v) and v > 0 for v in (self.multiplier, self.sensitivity)):
            raise ConfigError(
                f"length={self.length}, multiplier={self.multiplier}, sensitivity={self.sensitivity}",
                where="NoisyPrefix",
                remedy="use at least one addend, and finite numbers above 0",
            )

    @property
    def levels(self) -> int:
        """Nodes that an addend is in, at most."""
        return self.length.bit_length()

    @property
    def lattice(self) -> GaussianLattice:
        """Where the noise of all nodes is; addends are rounded to it, each before it is added up, so that what is told is on it too."""
        return GaussianLattice(self.multiplier * self.sensitivity)

    def event(self, unit: str = "example") -> Event:
        """What all releases together cost."""
        return Gaussian(unit=unit, noise_multiplier=self.multiplier, count=self.levels)

    def nodes(self, t: int) -> list[tuple[int, int]]:
        """The nodes whose union is ``[1, t]``, as (level, number): one for each bit of ``t``."""
        if not 0 <= t <= self.length:
            raise ConfigError(f"t={t}", where="NoisyPrefix", remedy=f"ask for 0 to {self.length} addends")
        return [(level, (t >> level) - 1) for level in range(self.levels) if t >> level & 1]

    def noise(self, key: bytes, t: int, dim: int) -> Array:
        """Noise of the prefix ``[1, t]``, symmetric, ``(dim, dim)``.

        The entries on and above the diagonal are independent; they determine the matrix, and move by at most its Frobenius norm.
        """
        total = np.zeros((dim, dim))
        for level, number in self.nodes(t):
            seed = hashlib.blake2b(f"{level}/{number}".encode(), key=key, digest_size=32).digest()
            draw = np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(seed, "little"))))
            steps = self.lattice.draw(words_of(draw), dim * dim).reshape(dim, dim)
            upper = np.triu(steps * self.lattice.step)
            total += upper + np.triu(upper, 1).T
        return total
